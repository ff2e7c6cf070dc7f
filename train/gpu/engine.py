"""A pass over edges that are whole on one device, by steps that never wait for the host.

On a GPU a step is captured once, as a CUDA graph, and replayed. The edges that do not fill a batch, or a
chunk, are steps of their own. All steps of a pass have the learning rates of its beginning.
"""

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from graphmill.config import Config
from train.edges import seeds
from train.gpu.fused_step import FusedStep, Group, Shape, Sides, chunk_size
from train.gpu.reference import Edges

CAPTURED_FROM = (
    32  # steps of one shape in a pass: fewer are not worth a graph, whose capture waits for the device
)
TELL_STEPS = 64
Tell = Callable[[int, Tensor], None]  # told how many edges are done, and the sums of StepFigures so far


def run(
    config: Config,
    step: FusedStep,
    edges: Edges,
    groups: list[Group],
    sides: Mapping[int, Sides],
    seed: int,
    tell: Tell = lambda done, sums: None,
) -> Tensor:
    """One pass over all edges in an order that `seed` decides; the sums of StepFigures, float64 [4].

    `sides` are the tables of each group's relation.
    """
    step.sums.zero_()
    pieces = list(_pieces(config, groups))
    if len(groups) > 1:  # the edges of one are in random order already; several take turns
        order = torch.randperm(len(pieces), generator=seeds.generator(seed, "pieces"))
        pieces = [pieces[number] for number in order.tolist()]
    keys = {group.relation: seeds.derived(seed, "group", group.relation) & 0xFFFFFFFF for group in groups}
    steps = _Steps(step, edges, sides, pieces)
    done = 0
    for number, (shape, position) in enumerate(pieces):
        steps.take(shape, keys[shape.group.relation], position)
        done += shape.num_edges
        if number % TELL_STEPS == TELL_STEPS - 1 or number == len(pieces) - 1:
            tell(done, step.sums)
    steps.finish()
    return step.sums


def _pieces(config: Config, groups: list[Group]) -> Iterator[tuple[Shape, int]]:
    """What each step works on, and where in its group's order it starts."""
    for group in groups:
        chunk = chunk_size(config, group.size)
        position = 0
        while (left := group.size - position) > 0:
            full = min(config.batch_size, left) // chunk
            shape = Shape(group, full, chunk) if full else Shape(group, 1, left)
            yield shape, position
            position += shape.num_edges


class _Steps:
    """Takes steps: one by one, or as replays of a captured graph."""

    def __init__(
        self, step: FusedStep, edges: Edges, sides: Mapping[int, Sides], pieces: list[tuple[Shape, int]]
    ) -> None:
        self.step, self.edges, self.sides = step, edges, sides
        self.related = {shape.group.relation: step.related(shape.group.relation) for shape, _ in pieces}
        self.taken: dict[int, int] = dict.fromkeys(self.related, 0)
        counts: dict[Shape, int] = {}
        for shape, _ in pieces:
            counts[shape] = counts.get(shape, 0) + 1
        capturing = step.device.type == "cuda"
        self.captured = {shape for shape, count in counts.items() if capturing and count >= CAPTURED_FROM}
        self.graphs: dict[Shape, torch.cuda.CUDAGraph] = {}
        # one for all: what a step leaves in it, no other step reads
        self.pool = torch.cuda.graph_pool_handle() if self.captured else None
        self.clock = (-1, -1)  # what the step's clock shows

    def take(self, shape: Shape, key: int, position: int) -> None:
        """One step."""
        relation = shape.group.relation
        if (key, position) != self.clock:  # else the last step has moved it here
            self.step.clock_2.copy_(torch.tensor([key, position]))
        self.clock = (key, position + shape.num_edges)
        if shape not in self.graphs:
            # the first steps compile the kernels; a capture itself computes nothing
            self._step(shape)
            if shape in self.captured and self.taken[relation]:
                self.graphs[shape] = self._capture(shape)
        else:
            self.graphs[shape].replay()
        self.taken[relation] += 1

    def finish(self) -> None:
        """Put the relations' parameters back into the model."""
        for relation, related in self.related.items():
            for each in dict.fromkeys(related):
                each.put_back(self.step.model, self.step.adagrad, self.taken[relation])

    def _step(self, shape: Shape) -> None:
        relation = shape.group.relation
        self.step(self.edges, shape, self.related[relation], self.sides[relation])

    def _capture(self, shape: Shape) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        # other threads may copy the next bucket's edges meanwhile
        with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            self._step(shape)
        return graph
