"""Captured grouped steps: what a replay repeats, and what a step asks of the host.

Without a GPU, a stand-in for a graph repeats the step with the tensors of its capture: a number or an address
that should not be in a graph changes the result.
"""

from collections import Counter

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from graphmill.vocab import Side
from tests.pairs import pairs
from tests.train.step.test_plain import Scene
from tests.train.step.test_queries import all_negs, known_of, queries_of
from train.edges import candidates
from train.edges.candidates import CandidateSampler
from train.gpu.replays import Replays
from train.step.queries import QueryStep
from train.step.step import Table

CPU = torch.device("cpu")
MOST_OPERATIONS = {"one type": 130, "two types": 145, "predicting": 175, "sample": 230}
MASK_OPERATIONS = 20
VIEWS = {  # and questions that launch nothing
    "device", "promote_types", "dtype", "layout",
    "view", "_unsafe_view", "select", "slice", "expand", "detach", "alias", "t", "transpose", "unsqueeze",
    "squeeze", "split", "split_with_sizes", "unbind", "empty", "empty_like", "new_empty", "as_strided",
    "reshape",
}  # fmt: skip


class StandIn:
    """Captures by keeping the work, without doing it."""

    def __init__(self):
        self.captures = self.replays = 0

    def __call__(self, work):
        self.captures += 1

        def replay():
            self.replays += 1
            work()

        return replay


def buckets(config, elementwise, has_known):
    """Batches of four epochs, on two sets of tables in turn."""
    scene = Scene(config, num_edges=30, elementwise=elementwise)
    others = {name: Table(own.embeddings_ND.flip(0), own.sums.clone()) for name, own in scene.tables.items()}
    tables = [scene.side_tables, {side: others[config.relations[0].entity_type(side)] for side in Side}]
    known = known_of(scene) if has_known else None
    cut = [queries_of(scene, known, seed) for seed in range(8)]
    steps = [(batch, tables[number % 2]) for number, each in enumerate(cut) for batch in each]
    return scene, tables, steps


@pytest.mark.parametrize(
    ("dynamic", "elementwise", "has_known", "more"),
    [
        (True, True, False, {}),
        (False, False, True, {}),
        (True, False, True, {"regularization_coef": 0.03}),
        (False, True, False, {"max_norm": 2.0}),
        (False, False, True, {"comparator": "l2"}),
        (True, True, True, {"batch_size": 3}),
        (True, True, False, {"train": {"relation_prediction": 0.5}}),
        (True, True, False, {"train": {"candidates": 3}, "regularization_coef": 0.03}),
        (True, True, True, {"train": {"candidates": 3}}),
    ],
)
def test_replays_are_steps(monkeypatch, dynamic, elementwise, more, has_known):
    monkeypatch.setattr(candidates, "ONE_OF", 4)  # so that some of a sample's queries are exact
    monkeypatch.setattr(candidates, "QUERIES_OF_AN_UPDATE", 0)
    config = all_negs(
        **{"operator": "complex_diagonal", "comparator": "dot", "batch_size": 5} | more, dynamic=dynamic
    )
    results = []
    for is_replayed in (False, True):
        scene, tables, steps = buckets(config, elementwise, has_known)
        own, graph = (config, scene.model, scene.adagrad), StandIn()
        step = QueryStep(*own, launch=Replays(*own, graph, CPU)) if is_replayed else QueryStep(*own)
        draw = torch.Generator().manual_seed(3)
        sums = []
        for number, (batch, sides) in enumerate(steps):
            step.lr_scale = 0.3 / (1 + number)
            sums.append([float(each) for each in step(batch, sides, draw)])
        if is_replayed:
            assert 0 < graph.captures < graph.replays < len(steps)
        others = [each for table in tables[1].values() for each in (table.embeddings_ND, table.sums)]
        results.append((torch.tensor(sums), others, scene.state(), scene.adagrad.steps))
    torch.testing.assert_close(results[1], results[0], rtol=1e-6, atol=1e-6)  # the rate is a float32


class Operations(TorchDispatchMode):
    """Counts operations that launch something; fake tensors refuse those that need the host."""

    def __init__(self):
        super().__init__()
        self.found = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name not in VIEWS:
            self.found[name] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "case", "has_known"),
    pairs(
        ["row_adagrad", "adagrad"],
        [
            ("item", True, {}),
            ("item", False, {"reciprocal_relations": True}),
            ("user", False, {}),
            ("item", True, {"relation_prediction": 0.5}),
            ("user", True, {"candidates": 3}),
        ],
        [False, True],
    ),
)
def test_a_step_never_waits_for_the_host(optimizer, case, has_known):
    lhs, dynamic, train = case
    relation = {"name": "r", "lhs": lhs, "rhs": "item", "operator": "complex_diagonal", "all_negs": True}
    config = all_negs(
        "complex_diagonal", "dot", dynamic, relations=[relation], global_emb=False, half_precision=True,
        regularization_coef=0.05, train={"optimizer": optimizer, **train},
    )  # fmt: skip
    scene = Scene(config, num_edges=40, elementwise=optimizer == "adagrad")
    batch = queries_of(scene, known_of(scene) if has_known else None)[0]
    assert (batch.others is not None) is has_known
    batch = CandidateSampler(config).draw(batch, len(scene.side_tables[batch.side]), torch.Generator())
    with FakeTensorMode() as fake:
        step = QueryStep(config, scene.model, scene.adagrad)
        for values in (scene.model.parameters, scene.adagrad.sums):
            values.update({key: fake.from_tensor(value) for key, value in values.items()})
        for table in scene.tables.values():
            table.embeddings_ND, table.sums = map(fake.from_tensor, (table.embeddings_ND, table.sums))
        fakes = {name: fake.from_tensor(value) for name, value in batch.tensors().items()}
        with Operations() as operations:
            step.move(type(batch)(**(vars(batch) | fakes)), scene.side_tables, torch.ones(()))
    kind = "predicting" if "relation_prediction" in train else "one type" if lhs == "item" else "two types"
    kind = "sample" if "candidates" in train else kind
    most = MOST_OPERATIONS[kind] + (MASK_OPERATIONS if has_known else 0)
    assert operations.found.total() <= most, operations.found
