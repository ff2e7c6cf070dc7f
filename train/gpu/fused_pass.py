"""A pass over edges on one device, by steps that never wait for the host.

On a GPU, a step is captured once as a CUDA graph and then replayed. Edges that do not fill a batch or a chunk
make smaller steps. All steps of a pass have the learning rates of its beginning.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate

import torch
from torch import Tensor

from graphmill.config import Config
from train.edges import seeds
from train.edges.batches import EdgeTensors
from train.edges.negative_sampling import Sampling
from train.gpu.fused_step import FusedStep, Group, Shape, Sides
from train.gpu.reference import Edges

CAPTURED_FROM = 32  # steps of one shape in a pass: a capture waits for the device, and pays off with more
REPORT_STEPS = 64
Report = Callable[[int, Tensor], None]  # takes the number of edges done, and the sums of StepFigures so far


def train(
    step: FusedStep, edges: EdgeTensors, sides: Mapping[int, Sides], seed: int, report: Report
) -> Tensor:
    """Train once on a bucket's edges, in an order from `seed`; return the sums of StepFigures, float64 [4].

    `sides` are the tables of each relation, in this bucket.
    """
    columns, groups = _grouped(step.config, edges)
    return run(step, columns, groups, sides, seed, report)


def run(
    step: FusedStep,
    edges: Edges,
    groups: list[Group],
    sides: Mapping[int, Sides],
    seed: int,
    report: Report = lambda done, sums: None,
) -> Tensor:
    """Train like `train`, on columns of edges in groups."""
    step.sums.zero_()
    pieces = list(cut(step.config, groups))
    if len(groups) > 1:  # one group is in random order already; several groups take turns
        order = torch.randperm(len(pieces), generator=seeds.generator(seed, "pieces"))
        pieces = [pieces[number] for number in order.tolist()]
    keys = {group.relation: seeds.derived(seed, "group", group.relation) & 0xFFFFFFFF for group in groups}
    steps = _Steps(step, edges, sides, pieces)
    done = 0
    for number, (shape, position) in enumerate(pieces):
        steps.take(shape, keys[shape.group.relation], position)
        done += shape.num_edges
        if number % REPORT_STEPS == REPORT_STEPS - 1 or number == len(pieces) - 1:
            report(done, step.sums)
    steps.finish()
    return step.sums


def cut(config: Config, groups: list[Group]) -> Iterator[tuple[Shape, int]]:
    """Cut groups into steps; yield each step's shape, and its position in the group's order."""
    sampling = Sampling.of_training(config)
    for group in groups:
        chunk = sampling.chunk_size(min(config.batch_size, group.size))
        position = 0
        while (left := group.size - position) > 0:
            full = min(config.batch_size, left) // chunk
            shape = Shape(group, full, chunk) if full else Shape(group, 1, left)
            yield shape, position
            position += shape.num_edges


def _grouped(config: Config, edges: EdgeTensors) -> tuple[Edges, list[Group]]:
    """Convert edges to 32-bit columns, with the edges of each static relation side by side."""
    if config.dynamic_relations:
        groups = [Group(0, 0, len(edges))] if len(edges) else []
    else:
        if bool((edges.rel[1:] < edges.rel[:-1]).any()):
            edges = edges[torch.sort(edges.rel, stable=True).indices]
        counts = torch.bincount(edges.rel, minlength=len(config.relations)).tolist()
        pairs = enumerate(zip(counts, accumulate(counts), strict=True))
        groups = [Group(number, end - count, count) for number, (count, end) in pairs if count]
    lhs, rel, rhs = (column.to(torch.int32) for column in (edges.lhs, edges.rel, edges.rhs))
    return Edges(lhs, rel, rhs, edges.weight), groups


class _Steps:
    """Takes steps: one by one, or as replays of a captured graph."""

    def __init__(
        self, step: FusedStep, edges: Edges, sides: Mapping[int, Sides], pieces: list[tuple[Shape, int]]
    ) -> None:
        self.step, self.edges, self.sides = step, edges, sides
        counts = Counter(shape for shape, _ in pieces)
        self.parameters = {
            relation: step.relation_parameters(relation) for relation in {s.group.relation for s in counts}
        }
        self.taken = Counter[int]()  # steps of each relation
        capturing = step.device.type == "cuda"
        self.captured = {shape for shape, count in counts.items() if capturing and count >= CAPTURED_FROM}
        self.graphs: dict[Shape, torch.cuda.CUDAGraph] = {}
        # All graphs share one memory pool: no step reads what another step has left there.
        self.pool = torch.cuda.graph_pool_handle() if self.captured else None
        self.clock = (-1, -1)  # key and position of the step's clock

    def take(self, shape: Shape, key: int, position: int) -> None:
        """Take one step."""
        relation = shape.group.relation
        if (key, position) != self.clock:  # otherwise the last step set the clock
            self.step.clock_2.copy_(torch.tensor([key, position]))
        self.clock = (key, position + shape.num_edges)
        if shape not in self.graphs:
            # The first steps compile the kernels; a capture computes nothing.
            self._step(shape)
            if shape in self.captured and self.taken[relation]:
                self.graphs[shape] = self._capture(shape)
        else:
            self.graphs[shape].replay()
        self.taken[relation] += 1

    def finish(self) -> None:
        """Copy the operators' parameters back into the model."""
        for relation, parameters in self.parameters.items():
            for each in dict.fromkeys(parameters):
                each.write_back(self.step.model, self.step.adagrad, self.taken[relation])

    def _step(self, shape: Shape) -> None:
        relation = shape.group.relation
        self.step(self.edges, shape, self.parameters[relation], self.sides[relation])

    def _capture(self, shape: Shape) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        # Other threads may copy the next bucket's edges meanwhile.
        with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            self._step(shape)
        return graph
