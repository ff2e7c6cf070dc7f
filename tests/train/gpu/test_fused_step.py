"""The fused step is the step of train/step/plain.py; captured steps change nothing; numbers from counters."""

from collections.abc import Iterator, Mapping
from typing import Any, Self

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from graphmill.ask.model import Model
from graphmill.config import Config
from graphmill.vocab import Side
from tests.train.gpu.recording import Recorder
from tests.train.graphs import make_config, relation
from tests.train.step.test_plain import Scene
from train.edges.batches import EdgeTensors
from train.edges.negative_sampling import Batch, Block, in_batch_negatives
from train.edges.own_rows import BlockRows
from train.gpu import fused_pass, reference
from train.gpu.copies import Slot, num_floats_of
from train.gpu.fused_pass import FusedPass, grouped, obstacle
from train.gpu.fused_step import FusedStep, Shape
from train.gpu.reference import KernelClock, draw, mix, permute
from train.model.optimizer import Adagrad
from train.step.plain import PlainStep
from train.step.step import Table

NUM_ROWS = {"a": 40, "b": 30}
NUM_RELATIONS = 3


def config_of(*, dynamic: bool, same_type: bool, operator: str, **settings: Any) -> Config:
    right = "a" if same_type else "b"
    num_relations = 1 if dynamic else NUM_RELATIONS
    relations = [relation(operator, name=f"r{n}", lhs="a", rhs=right) for n in range(num_relations)]
    usual = {
        "dimension": 12,
        "relation_lr": 0.05,
        "batch_size": 24,
        "num_batch_negs": 12,
        "num_uniform_negs": 5,
    }
    usual |= {"dynamic_relations": dynamic, "global_emb": False}
    entities = {name: {"num_partitions": 1} for name in ({"a"} | {right})}
    return make_config("unused", entities=entities, relations=relations, **usual | settings)


class Drawn:
    """A Sampling that gives the blocks that the fused step has drawn."""

    def __init__(self, sample: reference.KernelSample, relation: int, first: int, *, dynamic: bool):
        self.block = Block(
            relation=relation,
            rel_CP=sample.rel_CP.long() if dynamic else None,
            weight_CP=sample.weight_CP.double(),
            rows={side: sample.rows_SCK[number].long() for number, side in enumerate(Side)},
            first_negative=dict.fromkeys(Side, first),
        )

    def drawing(self, _: float) -> Self:
        return self

    def blocks(self, batch: Batch, num_rows: Mapping[Side, int], *_: Any) -> Iterator[Block]:
        yield self.block


def edges_of(num_edges, num_rows, generator, *, weighted):
    """Random edges between so many rows of each side."""

    def column(limit: int) -> Tensor:
        return torch.randint(limit, (num_edges,), generator=generator, dtype=torch.int32)

    return EdgeTensors(
        column(num_rows[0]),
        column(NUM_RELATIONS).sort().values,
        column(num_rows[1]),
        torch.rand(num_edges, generator=generator, dtype=torch.float64) + 0.5 if weighted else None,
    )


CASES = [
    # dynamic, one type, operator, loss, settings, weighted
    (True, True, "complex_diagonal", "softmax", {"regularization_coef": 0.03}, False),
    (True, False, "diagonal", "ranking", {"num_batch_negs": 0, "num_uniform_negs": 6}, True),
    (True, True, "translation", "logistic", {"num_batch_negs": 5}, True),
    (False, True, "complex_diagonal", "softmax", {"regularization_coef": 0.03}, True),
    (False, False, "diagonal", "logistic", {"regularization_coef": 0.01}, False),
    (False, True, "none", "ranking", {}, True),
    (True, True, "none", "softmax", {"num_uniform_negs": 0}, True),
]


@pytest.mark.parametrize(("dynamic", "same", "operator", "loss", "settings", "weighted"), CASES)
def test_a_step_is_that_of_the_plain_trainer(dynamic, same, operator, loss, settings, weighted):
    config = config_of(dynamic=dynamic, same_type=same, operator=operator, loss_fn=loss, **settings)
    assert obstacle(config) is None
    generator = torch.Generator().manual_seed(3)
    num_rows = [NUM_ROWS[config.relations[0].entity_type(side)] for side in Side]
    edges, (*_, group) = grouped(config, edges_of(200, num_rows, generator, weighted=weighted))
    positives = 12
    shape = Shape(group.relation, 2, positives)

    ours, plain = (Scene(config, group.relation, counts=NUM_ROWS) for _ in range(2))
    fused = FusedStep(config, ours.model, ours.adagrad, torch.device("cpu"), torch.float64)
    sides = ours.side_tables
    clock = KernelClock(77, 5, group.first, group.size, reference.half_bits(group.size), *num_rows)
    fused.clock_F.copy_(torch.tensor(clock))
    first, again = in_batch_negatives(config.num_batch_negs, positives)
    sample = reference.sample(edges, fused.clock_F, (2, positives, again, config.num_uniform_negs))
    fused.operators[group.relation].load(group.relation)
    fused(edges, shape, (sides[Side.LHS], sides[Side.RHS]))
    fused.operators[group.relation].write_back(group.relation, 1)

    step = PlainStep(config, plain.model, plain.adagrad)
    # as the plain trainer cuts a chunk of so many edges
    assert first == (0 if config.num_batch_negs >= positives else positives)
    drawn = Drawn(sample, group.relation, first, dynamic=dynamic)
    step.sampling = drawn  # type: ignore[assignment]
    batch = Batch(
        group.relation,
        {side: sample.rows_SCK[number][:, :positives].flatten().long() for number, side in enumerate(Side)},
        sample.rel_CP.flatten().long() if dynamic else None,
        sample.weight_CP.flatten().double(),
    )
    figures = step(batch, plain.side_tables, generator)
    torch.testing.assert_close(fused.sums, torch.stack([each.double() for each in figures]))
    torch.testing.assert_close(ours.state(), plain.state())


NUM_SLOTS, NUM_EPOCHS = 2, 2
BUCKETS = [(0, 0), (1, 0), (1, 0), (1, 1)]  # slots of lhs and rhs


class Run:
    """Epochs over buckets, whose tables are in slots, as those of a buffer on a device."""

    def __init__(self, config: Config, *, captured: bool, blocks: bool = False) -> None:
        generator = torch.Generator().manual_seed(1)
        self.config, self.has_blocks = config, blocks
        self.types = [config.relations[0].entity_type(side) for side in Side]
        self.slots = {
            (name, slot): Table(
                torch.randn(NUM_ROWS[name], config.dimension, generator=generator) / 2,
                torch.rand(NUM_ROWS[name], generator=generator),
            )
            for name in config.entities
            for slot in range(NUM_SLOTS)
        }
        num_relations = NUM_RELATIONS if config.dynamic_relations else None
        self.model = Model(config, num_relations, relation_init="random", seed=2)
        self.adagrad = Adagrad(self.model.parameters, config.relation_lr or config.lr)
        self.fused = FusedPass(FusedStep(config, self.model, self.adagrad, torch.device("cpu")))
        self.tables = [each for table in self.slots.values() for each in (table.embeddings_ND, table.sums)]
        self.recorder = Recorder(self.fused, self.tables) if captured else None
        self.sums: list[Tensor] = []

    def train(self) -> "Run":
        for epoch in range(NUM_EPOCHS):
            for bucket in range(len(BUCKETS)):
                self.bucket(epoch, bucket)
        return self

    def bucket(self, epoch: int, number: int) -> None:
        """Train on edges of another number, with tables of another length, at another learning rate."""
        tables = [self.slots[name, slot] for name, slot in zip(self.types, BUCKETS[number], strict=True)]
        pair = [table.rows(slice(len(table) - number % 3)) for table in tables]
        if self.types[0] == self.types[1] and BUCKETS[number][0] == BUCKETS[number][1]:
            pair[1] = pair[0]
        size = 150 + 40 * number
        generator = torch.Generator().manual_seed(number)
        edges = edges_of(size, list(map(len, pair)), generator, weighted=number == 2)
        sides = dict.fromkeys(range(len(self.config.relations)), (pair[0], pair[1]))
        stops = {name: (9 + number, len(table)) for name, table in zip(self.types, pair, strict=True)}
        groups = grouped(self.config, edges, BlockRows(0.5, stops if self.has_blocks else {}))
        own = {"lr_scale": lambda done: (1 - done / 2) / (1 + epoch + number)}
        self.sums.append(self.fused.run(*groups, sides, 10 * epoch + number, **own).clone())

    def state(self) -> list[Tensor]:
        return [*self.tables, *self.model.parameters.values(), *self.adagrad.sums.values(), *self.sums]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dynamic", "same", "operator", "blocks", "own"),
    [
        (True, True, "complex_diagonal", True, {"regularization_coef": 0.03}),
        (False, False, "diagonal", False, {"train": {"freeze": ["r1"]}}),
        (False, False, "none", False, {"train": {"freeze": ["a"]}}),
        (False, True, "translation", True, {"train": {"reciprocal_relations": True, "deterministic": False}}),
    ],
)
def test_captured_steps_are_the_steps(
    dynamic: bool, same: bool, operator: str, blocks: bool, own: dict[str, Any]
) -> None:
    config = config_of(dynamic=dynamic, same_type=same, operator=operator, batch_size=48, **own)
    direct, replayed = (Run(config, captured=captured, blocks=blocks).train() for captured in (False, True))
    torch.testing.assert_close(replayed.state(), direct.state(), rtol=0, atol=0)
    assert direct.adagrad.steps == replayed.adagrad.steps
    assert replayed.recorder is not None
    assert replayed.recorder.num_replays > len(replayed.recorder.captured) > len(BUCKETS)


def test_later_epochs_capture_nothing() -> None:
    config = config_of(dynamic=True, same_type=False, operator="none", batch_size=96)
    run = Run(config, captured=True).train()
    assert run.recorder is not None
    # edges found their place in the first epoch, and steps came again in the second: they are captured now
    for epoch in (2, 3):
        num_captures = len(run.recorder.captured)
        for number in range(len(BUCKETS)):
            run.bucket(epoch, number)
    assert len(run.recorder.captured) == num_captures


def test_learning_rates_go_by_the_edges_that_are_done() -> None:
    run = Run(config_of(dynamic=True, same_type=True, operator="diagonal", batch_size=48), captured=False)
    really_run, done = run.fused.run, list[float]()

    def watched(*given: Any, lr_scale: Any) -> Tensor:
        return really_run(*given, lr_scale=lambda share: done.append(share) or lr_scale(share))

    run.fused.run = watched  # type: ignore[method-assign]
    run.bucket(0, 0)
    assert len(set(done)) == len(done) > 2
    assert done == sorted(done)
    assert 0 == done[0] < done[-1] < 1


class HostNumbers(TorchDispatchMode):
    """Counts tensors made of Python's numbers outside kernels: what a device gets from its host."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder, self.count = recorder, 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        is_new = function.overloadpacket.__name__ == "lift_fresh"
        self.count += is_new and not self.recorder.is_inside
        return function(*arguments, **(options or {}))


def test_relations_share_their_graphs_and_the_host_sends_a_few_tensors_a_pass() -> None:
    run = Run(config_of(dynamic=False, same_type=True, operator="diagonal", batch_size=6), captured=True)
    assert run.recorder is not None
    with HostNumbers(run.recorder) as counted:
        run.bucket(0, 0)
    assert len(run.recorder.captured) == 1  # of three relations with 25 full steps together
    assert run.recorder.num_replays > 20
    assert counted.count == 3  # clocks, and rates of two tensors


@pytest.mark.slow
def test_few_graphs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(dynamic=False, same_type=True, operator="diagonal", batch_size=48)
    wanted = Run(config, captured=False).train()
    monkeypatch.setattr(fused_pass, "MAX_GRAPHS", 3)
    found = Run(config, captured=True).train()
    assert len(found.fused._graphs) == 3
    torch.testing.assert_close(found.state(), wanted.state(), rtol=0, atol=0)


def test_many_edges_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_pass, "KEPT_EDGES", 100)
    config = config_of(dynamic=True, same_type=True, operator="diagonal", batch_size=48)
    run = Run(config, captured=True).train()
    assert not run.fused._kept
    assert run.recorder is not None
    assert run.recorder.captured


def test_partitions_of_almost_one_size_have_the_same_addresses_in_a_slot() -> None:
    tables = [Table(torch.zeros(num_rows, 12), torch.zeros(num_rows)) for num_rows in (100, 99)]
    slot = Slot(num_floats_of(tables[0]), torch.device("cpu"))
    places = []
    for table in tables:
        here = slot.table(table)
        here.embeddings_ND.fill_(1)
        here.sums.fill_(2)
        assert int(here.embeddings_ND.sum()) == table.embeddings_ND.numel()  # no place is shared
        places.append((here.embeddings_ND.data_ptr(), here.sums.data_ptr()))
    assert places[0] == places[1]


@given(num_items=st.integers(1, 3000), key=st.integers(0, 2**32 - 1))
def test_every_item_comes_once(num_items: int, key: int) -> None:
    order = permute(key, torch.arange(num_items), num_items)
    assert torch.equal(order.sort().values, torch.arange(num_items))


def test_orders_differ_by_key_and_from_the_identity() -> None:
    places = torch.arange(10_000)
    first, second = (permute(key, places, 10_000) for key in (1, 2))
    for one, other in ((first, second), (first, places)):
        assert (one == other).sum() < 10
    # neighbours do not stay neighbours
    assert ((first[1:] - first[:-1]).abs() < 100).sum() < 400


@pytest.mark.parametrize("num_items", [1, 7, 14_541, 2**31 - 1])
def test_draws_are_uniform(num_items: int) -> None:
    draws = draw(99, torch.arange(200_000), num_items)
    assert draws.min() >= 0
    assert draws.max() < num_items
    buckets = torch.bincount(draws * min(num_items, 20) // num_items).double()
    expected = 200_000 / min(num_items, 20)
    assert (buckets - expected).abs().max() < 5 * expected**0.5


def test_sides_and_steps_draw_other_numbers() -> None:
    keys = [mix(5 ^ side, torch.tensor(position)) for side in (1, 2) for position in (0, 64)]
    draws = [draw(key, torch.arange(1000), 2**30) for key in keys]
    for number, one in enumerate(draws):
        for other in draws[number + 1 :]:
            assert (one == other).sum() == 0
