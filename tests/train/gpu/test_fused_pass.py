"""A pass over buckets: captured steps serve all groups, buckets and epochs, and change nothing."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from graphmill.ask.model import Model
from graphmill.config import Config
from graphmill.vocab import Side
from tests.train.gpu.recording import Recorder
from tests.train.gpu.test_fused_step import NUM_RELATIONS, NUM_ROWS, config_of, edges_of, groups_of
from train.gpu import fused_pass
from train.gpu.copies import Slot, num_floats_of
from train.gpu.fused_pass import FusedPass
from train.gpu.fused_step import FusedStep
from train.model.optimizer import Adagrad
from train.step.step import Table

NUM_SLOTS, NUM_EPOCHS = 2, 2
BUCKETS = [(0, 0), (1, 0), (1, 0), (1, 1)]  # slots of lhs and rhs


class Run:
    """Epochs over buckets, whose tables are in slots, as those of a buffer on a device."""

    def __init__(self, config: Config, *, captured: bool) -> None:
        generator = torch.Generator().manual_seed(1)
        self.config, self.types = config, [config.relations[0].entity_type(side) for side in Side]
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
        tables = [each for table in self.slots.values() for each in (table.embeddings_ND, table.sums)]
        self.recorder = Recorder(self.fused, tables) if captured else None
        self.sums: list[Tensor] = []

    def train(self) -> "Run":
        for epoch in range(NUM_EPOCHS):
            for bucket in range(len(BUCKETS)):
                self.bucket(epoch, bucket)
        return self

    def bucket(self, epoch: int, number: int) -> None:
        """Train on edges of another number, with tables of another length, at another learning rate."""
        pair = []
        for side, name in enumerate(self.types):
            table = self.slots[name, BUCKETS[number][side]]
            num_rows = len(table) - number % 3
            pair.append(Table(table.embeddings_ND[:num_rows], table.sums[:num_rows]))
        if self.types[0] == self.types[1] and BUCKETS[number][0] == BUCKETS[number][1]:
            pair[1] = pair[0]
        size = 150 + 40 * number
        generator = torch.Generator().manual_seed(number)
        edges = edges_of(size, list(map(len, pair)), generator, weighted=number == 2)
        sides = dict.fromkeys(range(len(self.config.relations)), (pair[0], pair[1]))
        groups, seed = groups_of(self.config, edges), 10 * epoch + number
        sums = self.fused.run(
            edges, groups, sides, seed, lr_scale=lambda done: (1 - done / 2) / (1 + epoch + number)
        )
        self.sums.append(sums.clone())

    def state(self) -> list[Tensor]:
        tables = [each for table in self.slots.values() for each in (table.embeddings_ND, table.sums)]
        return [*tables, *self.model.parameters.values(), *self.adagrad.sums.values(), *self.sums]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dynamic", "same", "operator", "own"),
    [
        (True, True, "complex_diagonal", {"regularization_coef": 0.03}),
        (False, False, "diagonal", {"train": {"freeze": ["r1"]}}),
        (False, False, "none", {"train": {"freeze": ["a"]}}),
        (False, True, "translation", {"train": {"reciprocal_relations": True, "deterministic": False}}),
    ],
)
def test_captured_steps_are_the_steps(dynamic: bool, same: bool, operator: str, own: dict[str, Any]) -> None:
    config = config_of(dynamic=dynamic, same_type=same, operator=operator, batch_size=48, **own)
    direct, replayed = (Run(config, captured=captured).train() for captured in (False, True))
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
