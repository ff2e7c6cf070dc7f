"""Batches: all edges once, relations apart where they are static, the same edges held out."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphmill.run import seeds
from graphmill.vocab import Side
from tests.train.graphs import make_config
from train.edges import batches
from train.edges.batches import EdgeTensors

RELATIONS = [{"name": f"r{i}", "lhs": "node", "rhs": "node"} for i in range(4)]


def numbered(rel) -> EdgeTensors:
    """Edges whose lhs is their own number."""
    number = torch.arange(len(rel))
    return EdgeTensors(number, torch.tensor(rel, dtype=torch.int64), number + 1000, number.float())


def cut(dynamic, edges, batch_size, seed=0):
    relations = RELATIONS[:1] if dynamic else RELATIONS
    config = make_config("unused", relations=relations, dynamic_relations=dynamic, batch_size=batch_size)
    return list(batches.cut(config, edges, torch.Generator().manual_seed(seed)))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@given(rel=st.lists(st.integers(0, 3), max_size=150), batch_size=st.integers(1, 20))
def test_every_edge_once_and_whole(dynamic, rel, batch_size):
    edges = numbered(rel)
    found = cut(dynamic, edges, batch_size)
    numbers = [n for batch in found for n in batch.index[Side.LHS].tolist()]
    assert sorted(numbers) == list(range(len(rel)))
    for batch in found:
        assert 0 < len(batch) <= batch_size * batch.num_steps
        assert batch.num_steps == 1 or len(batch) == batch_size * batch.num_steps
        lhs = batch.index[Side.LHS]
        assert torch.equal(batch.index[Side.RHS], lhs + 1000)
        assert torch.equal(batch.weight_B, lhs.float())
        rels = edges.rel[lhs]
        if dynamic:
            assert torch.equal(batch.rel_B, rels)
        else:
            assert batch.rel_B is None
            assert (rels == batch.relation).all()
    if not dynamic:  # no more batches than the relations need
        assert len(found) == sum(-(-rel.count(r) // batch_size) for r in range(4))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_order_is_random_and_repeatable(dynamic):
    edges = numbered([0, 1] * 50)
    orders = [
        tuple(n for batch in cut(dynamic, edges, 10, seed) for n in batch.index[Side.LHS].tolist())
        for seed in (1, 1, 2)
    ]
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] != tuple(sorted(orders[0]))


def test_batches_of_a_static_relation_are_handed_on_together():
    edges = numbered([0, 1] * 6403)
    found = cut(False, edges, 100)
    for relation in (0, 1):
        steps = sorted((batch.num_steps for batch in found if batch.relation == relation), reverse=True)
        assert steps == [batch.num_steps for batch in cut(True, numbered([0] * 6403), 100)]
    assert {batch.relation for batch in found[:10]} == {0, 1}  # in random order


def test_batches_are_handed_on_together_fewer_towards_the_end():
    found = [batch.num_steps for batch in cut(True, numbered([0] * 6403), 100)]
    assert found[0] == 4
    assert found == sorted(found, reverse=True)
    assert found[-17:] == [1] * 17  # the last has 3 edges
    (relation,) = RELATIONS[:1]
    config = make_config("unused", relations=[relation | {"all_negs": True}], batch_size=100)
    alone = batches.cut(config, numbered([0] * 6400), torch.Generator())
    assert {batch.num_steps for batch in alone} == {1}  # each holds a list of all entities


@given(
    edges=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 3)), max_size=50),
    fraction=st.floats(0, 1),
    seed=st.integers(0, 2**63 - 1),
)
def test_an_edge_alone_decides_whether_it_is_held_out(edges, fraction, seed):
    columns = tuple(np.array(edges, np.int64).reshape(-1, 3).T)
    is_held = seeds.held_out(columns, fraction, seed)
    for edge, found in zip(edges, is_held.tolist(), strict=True):
        assert seeds.held_out(tuple(np.array([each]) for each in edge), fraction, seed).item() == found
    if fraction in (0, 1):
        assert is_held.tolist() == [bool(fraction)] * len(edges)


@pytest.mark.parametrize("fraction", [0.05, 0.3])
def test_about_the_fraction_is_held_out(fraction):
    columns = np.divmod(np.arange(10_000), 100)
    is_held = seeds.held_out((columns[0], np.zeros(10_000, int), columns[1]), fraction, 7)
    assert abs(is_held.mean() - fraction) < 5 * (fraction * (1 - fraction) / 10_000) ** 0.5


@given(held=st.lists(st.booleans(), max_size=50))
def test_held_out_edges_are_the_rest(held):
    edges = replace(numbered([0] * len(held)), is_held_out=torch.tensor(held, dtype=torch.bool))
    kept, rest = batches.split(edges, torch.Generator().manual_seed(7))
    assert sorted(rest.lhs.tolist()) == [row for row, each in enumerate(held) if each]
    assert kept.lhs.tolist() == [row for row, each in enumerate(held) if not each]
