"""A pass over edges on one device, by steps that never wait for the host.

A pass has two tables on the device, of the clock and of the learning rates of each step. The host copies a
step's rows of them and launches the step. On a GPU, a step that comes for the second time is captured as a
CUDA graph, which then serves all steps of its shape: in all groups, passes and epochs.

Edges that do not fill a batch or a chunk make smaller steps.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from itertools import accumulate, chain, product

import torch
from torch import Tensor

from graphmill.config import Config
from graphmill.model.operators import operator_of
from graphmill.run import seeds
from train.edges.batches import EdgeTensors
from train.edges.negative_sampling import Sampling
from train.edges.own_rows import NO_BLOCKS, BlockRows, OwnRows
from train.gpu.capture import Captured, capture_on
from train.gpu.fused_step import FusedStep, NegativeGroup, Shape, Sides
from train.gpu.reference import LOSSES, OPERATORS, KernelClock, KernelEdges, half_bits
from train.model import regularizers
from train.model.frozen import Frozen

MAX_DIMENSION = 1024  # of which a tile of rows and its sums fit in the registers of a block
MAX_GRAPHS = 256  # each takes about a megabyte
KEPT_EDGES = 1 << 25  # more of them make so many steps that a pass pays for its own captures
REPORT_STEPS = 64
Piece = tuple[NegativeGroup, Shape, int]  # a step's group, its shape, and its position in the group's order
Report = Callable[[int, Tensor], None]  # takes the number of edges done, and the sums of StepFigures so far


def obstacle(config: Config) -> str | None:
    """Name the part of this configuration that the kernels cannot train; None for no such part."""
    for relation in config.relations:
        if relation.operator not in OPERATORS:
            return f"operator {relation.operator!r} of relation {relation.name!r}"
        if relation.all_negs:
            return f"all_negs of relation {relation.name!r}"
    settings = config.train
    two_sided = config.dynamic_relations or settings.reciprocal_relations
    refused = {
        f"comparator {config.comparator!r}": config.comparator != "dot",
        "translations of static relations": not two_sided
        and not all(operator_of(relation.operator).is_linear for relation in config.relations),
        f"loss_fn {config.loss_fn!r}": config.loss_fn not in LOSSES,
        f"regularizer {config.regularizer!r}": regularizers.is_plug_in(config),
        f"train.negative_sampler {settings.negative_sampler!r}": settings.negative_sampler is not None,
        "train.relation_prediction": settings.relation_prediction > 0,
        "bias": config.bias,
        "train.negative_power": settings.negative_power > 0,
        "global_emb": config.global_emb,
        "max_norm": config.max_norm is not None,
        f"a dimension above {MAX_DIMENSION}": any(
            config.entity_dimension(name) > MAX_DIMENSION for name in config.entities
        ),
        "disable_lhs_negs or disable_rhs_negs": config.disable_lhs_negs or config.disable_rhs_negs,
        "featurized entities": any(entity.featurized for entity in config.entities.values()),
    }
    return next((setting for setting, is_set in refused.items() if is_set), None)


def obstacle_of_device(config: Config, device: torch.device) -> str | None:
    """Name what the GPU lacks for the kernels, whose tiles are made for Hopper; None if nothing."""
    if device.type != "cuda":
        return None
    from train.gpu import kernels  # Triton comes with torch's builds for CUDA

    gpu = torch.cuda.get_device_properties(device)
    dimension = max(config.entity_dimension(name) for name in config.entities)
    operands = torch.bfloat16 if config.half_precision else torch.float32
    exact = config.train.exact_products
    needed = kernels.shared_bytes(dimension, operands, exact=exact)
    available: int = gpu.shared_memory_per_block_optin  # type: ignore[attr-defined]  # not in the stub
    if gpu.major >= 8 and needed <= available:
        return None
    return (
        f"dimension {dimension} on this {gpu.name}, with {available >> 10} KiB of "
        f"shared memory per block (at most {needed >> 10} are needed, and compute capability 8.0)"
    )


class FusedPass:
    """Trains on one bucket after another."""

    def __init__(self, step: FusedStep) -> None:
        self.step = step
        self.capture = capture_on(step.device)
        self._graphs: OrderedDict[Hashable, Captured] = OrderedDict()  # last used last
        self._kept: dict[str, Tensor] = {}

    def run(
        self,
        edges: KernelEdges,
        groups: list[NegativeGroup],
        sides: Sequence[Sides],
        seed: int,
        report: Report = lambda done, sums: None,
        lr_scale: Callable[[float], float] = lambda done: 1.0,
    ) -> Tensor:
        """Train once on the edges of a bucket, in an order from `seed`; return the sums of StepFigures.

        The sums are float64 [4]; `sides` are the tables of each relation, in this bucket. `lr_scale` gives
        the factor of the learning rates when a share of the edges, 0 to 1, is done.
        """
        step = self.step
        step.sums.zero_()
        pieces = list(cut(step.config, groups))
        if len(groups) > 1:  # one group is in random order already; several groups take turns
            order = torch.randperm(len(pieces), generator=seeds.generator(seed, "pieces"))
            pieces = [pieces[number] for number in order.tolist()]
        if self.capture is not None:
            edges = self._in_place(edges)
        clock_SF = _clocks(groups, pieces, sides, seed).to(step.device)
        begun = list(accumulate((shape.num_edges for _, shape, _ in pieces), initial=0))
        scales = [lr_scale(share / max(begun[-1], 1)) for share in begun[:-1]]
        rates_2 = torch.tensor([step.config.lr, step.adagrad.lr], dtype=torch.float64)
        rates_S2 = (torch.tensor(scales, dtype=torch.float64).unsqueeze(1) * rates_2).to(step.device)
        taken = Counter(group.relation for group, *_ in pieces)
        for relation in taken:
            step.operators[relation].load(relation)
        done = 0
        for number, (group, shape, _) in enumerate(pieces):
            step.clock_F.copy_(clock_SF[number])
            step.rates_2.copy_(rates_S2[number])
            self._take(edges, shape, sides[group.relation])
            done += shape.num_edges
            if number % REPORT_STEPS == REPORT_STEPS - 1 or number == len(pieces) - 1:
                report(done, step.sums)
        for relation, count in taken.items():
            step.operators[relation].write_back(relation, count)
        return step.sums

    def _take(self, edges: KernelEdges, shape: Shape, tables: Sides) -> None:
        """Take one step: launch by launch at first, then by its graph."""
        work = partial(self.step, edges, shape, tables)
        if self.capture is None:
            work()
            return
        rows = [tensor for table in tables for tensor in (table.embeddings_ND, table.sums)]
        places = tuple(0 if tensor is None else tensor.data_ptr() for tensor in (*edges, *rows))
        key = (shape, *places)
        step = self._graphs.pop(key, None) or Captured(self.capture)
        step(work)
        self._graphs[key] = step
        if len(self._graphs) > MAX_GRAPHS:
            self._graphs.popitem(last=False)

    def _in_place(self, edges: KernelEdges) -> KernelEdges:
        """Copy edges, unless they are many, to columns at addresses that graphs know."""
        size = len(edges.lhs)
        if size > KEPT_EDGES:
            return edges

        def held(name: str, column: Tensor) -> Tensor:
            if name not in self._kept or len(self._kept[name]) < size:
                self._kept[name] = column.new_empty(size + size // 4)  # the next bucket may be a bit larger
            return self._kept[name][:size].copy_(column)

        weight = None if edges.weight is None else held("weight", edges.weight)
        return KernelEdges(held("lhs", edges.lhs), held("rel", edges.rel), held("rhs", edges.rhs), weight)


def cut(config: Config, groups: list[NegativeGroup]) -> Iterator[Piece]:
    """Cut groups into steps."""
    sampling = Sampling.of_training(config)
    alike = _alike(config)
    for group in groups:
        chunk = sampling.chunk_size(min(config.batch_size, group.size))
        relation = alike[group.relation]
        position = 0
        while (left := group.size - position) > 0:
            full = min(config.batch_size, left) // chunk
            shape = Shape(relation, full, chunk) if full else Shape(relation, 1, left)
            yield group, shape, position
            position += shape.num_edges


def _alike(config: Config) -> list[int]:
    """Find for each relation the first one that the same captured step can train."""
    frozen = Frozen.of(config).relations
    kinds = [
        (relation.operator, relation.lhs, relation.rhs, n in frozen)
        for n, relation in enumerate(config.relations)
    ]
    return [kinds.index(kind) for kind in kinds]


def _clocks(groups: list[NegativeGroup], pieces: list[Piece], sides: Sequence[Sides], seed: int) -> Tensor:
    first: dict[int, KernelClock] = {}
    for kind, relation, start, size, own_rows in groups:
        key, num_rows = seeds.derived(seed, "group", kind) & 0xFFFFFFFF, [*map(len, sides[relation])]
        own = chain(*map(OwnRows.odds, own_rows.values(), num_rows))
        first[kind] = KernelClock(key, 0, start, size, half_bits(size), *num_rows, *own)
    clocks = [first[group.kind]._replace(position=position) for group, _, position in pieces]
    return torch.tensor(clocks, dtype=torch.int64).view(-1, len(KernelClock._fields))


def grouped(
    config: Config, edges: EdgeTensors, blocks: BlockRows = NO_BLOCKS
) -> tuple[KernelEdges, list[NegativeGroup]]:
    """Convert edges to 32-bit columns, with those of each static relation and pair of blocks side by side."""
    kinds = list(product(enumerate(config.relations), blocks.pairs))
    counts = [len(edges)]
    if len(kinds) > 1:
        kind_E = blocks.kinds(config, edges.lhs, edges.rel, edges.rhs)
        if bool((kind_E[1:] < kind_E[:-1]).any()):
            edges = edges[torch.sort(kind_E, stable=True).indices]
        counts = torch.bincount(kind_E, minlength=len(kinds)).tolist()
    first = list(accumulate(counts, initial=0))
    groups = [
        NegativeGroup(kind, number, first[kind], counts[kind], blocks.own_rows(relation, pair))
        for kind, ((number, relation), pair) in enumerate(kinds)
        if counts[kind]
    ]
    lhs, rel, rhs = (column.to(torch.int32) for column in (edges.lhs, edges.rel, edges.rhs))
    return KernelEdges(lhs, rel, rhs, edges.weight), groups
