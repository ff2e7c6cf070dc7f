"""Edges from a bucket file, every index checked; exact queries are those of the greatest weight."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphmill.errors import FormatError
from graphmill.formats import edge_buckets
from graphmill.formats.edge_buckets import Edges
from graphmill.vocab import Bucket, Side
from tests.train.graphs import make_config, random_triples, read_visits, relation, write_graph
from tests.train.step.test_queries import all_negs
from train.edges import batches, candidates
from train.edges.batches import EdgeTensors
from train.edges.candidates import CandidateSampler, exact
from train.edges.one_vs_all import QueryGroup

CPU = torch.device("cpu")
BUCKET = Bucket(0, 0)
NUM_ROWS = 5
WEIGHTS = st.sampled_from([1.0, 1.0, 0.5])


def config_of(root, relation_weights=(1.0,)):
    weights = enumerate(relation_weights)
    return make_config(
        root, relations=[relation("none", name=f"r{n}", weight=weight) for n, weight in weights]
    )


def read(config) -> EdgeTensors:
    num = len(config.relations)
    rows = {side: [NUM_ROWS] * num for side in Side}
    return batches.read(config, config.edge_paths[0], BUCKET, (0, 10**6), rows, num, CPU)


@given(
    edges=st.lists(st.tuples(*[st.integers(0, 4)] * 2, st.integers(0, 1), WEIGHTS), max_size=6),
    has_weights=st.booleans(),
    relation_weights=st.tuples(WEIGHTS, WEIGHTS),
    wide=st.booleans(),
)
def test_weights_are_left_out_where_all_are_one(tmp_path_factory, edges, has_weights, relation_weights, wide):
    config = config_of(tmp_path_factory.getbasetemp() / "reading", relation_weights)
    lhs, rhs, rel, own = np.array(edges).reshape(-1, 4).T
    weight = own.astype(np.float32) if has_weights else None
    path, dtype = config.edge_paths[0], np.int64 if wide else np.int32
    with edge_buckets.new_bucket(path, BUCKET, len(edges), index_dtype=dtype, weighted=has_weights) as writer:
        writer.append(Edges(*(each.astype(dtype) for each in (lhs, rel, rhs)), weight))
    found = read(config)
    for column, expected in ((found.lhs, lhs), (found.rel, rel), (found.rhs, rhs)):
        assert column.dtype == torch.int32
        assert column.tolist() == expected.tolist()
    product = np.array(relation_weights)[rel.astype(int)] * (own if has_weights else 1)
    assert found.weights.tolist() == product.tolist()
    assert (found.weight is None) == bool((product == 1).all())
    assert all(index.dtype == torch.int64 for index in found.index.values())


@pytest.mark.parametrize(
    ("column", "value"), [("lhs", 5), ("rel", 2**31), ("rhs", 2**32 + 1), ("lhs", 2**62)]
)
def test_a_number_beyond_32_bits_is_refused(tmp_path, column, value):
    config = config_of(tmp_path)
    columns = {name: np.array([0, 0]) for name in edge_buckets.COLUMNS} | {column: np.array([0, value])}
    edge_buckets.write_bucket(config.edge_paths[0], BUCKET, Edges(**columns))
    with pytest.raises(FormatError, match=rf"{column}\[1\] is .*; expected less than"):
        read(config)


@pytest.mark.parametrize("weighted", [[], [0], [1]])
def test_a_whole_graph_of_buckets_with_and_without_weights(tmp_path, weighted):
    types = {"user": {"num_partitions": 2}, "item": {"num_partitions": 1}}
    relations, train = [relation(lhs="user", rhs="item")], {"resident": "always"}
    config = make_config(
        tmp_path, entities=types, relations=relations, global_emb=False, num_epochs=1, train=train
    )
    write_graph(config, {"user": 6, "item": 4}, np.array([[0, 0, 1], [2, 0, 2], [1, 0, 3], [5, 0, 0]]))
    expected = []
    for bucket in (Bucket(0, 0), Bucket(1, 0)):
        rows = edge_buckets.read_bucket(config.edge_paths[0], bucket)
        weight = np.array([0.5, 1], np.float32) if bucket.lhs in weighted else None
        edge_buckets.write_bucket(config.edge_paths[0], bucket, replace(rows, weight=weight))
        expected += [1.0, 1.0] if weight is None else weight.tolist()
    ((*_, edges),) = read_visits(config, 1)
    assert edges.lhs.tolist() == [0, 1, 3, 5]  # users 0, 2, 4 are the first three rows, then 1, 3, 5
    assert edges.rhs.tolist() == [1, 2, 3, 0]
    assert {each.dtype for each in (edges.lhs, edges.rel, edges.rhs)} == {torch.int32}
    assert edges.weights.tolist() == expected
    assert (edges.weight is None) == (not weighted)


@pytest.mark.parametrize(
    ("partitions", "chunks", "blocks", "reads"),
    [(1, 1, None, 1), (1, 2, None, 6), (2, 1, None, 12), (2, 1, 1, 1), (2, 2, 1, 6)],
)
def test_edges_that_are_all_of_every_epoch_are_read_once(tmp_path, rng, partitions, chunks, blocks, reads):
    settings = {"num_edge_chunks": chunks, "num_epochs": 3, "global_emb": False, "eval_fraction": 0.0}
    config = make_config(tmp_path, num_partitions=partitions, **settings)
    edges = random_triples(rng, 8, 1, 8, 30)
    write_graph(config, {"node": 8}, edges)
    visits = [read for *_, read in read_visits(config, blocks)]
    assert sum(map(len, visits)) == 90
    assert len({id(read) for read in visits}) == reads


@pytest.mark.parametrize("dynamic", [False, True])
def test_batches_do_not_depend_on_the_width_of_columns(dynamic):
    rel = torch.arange(90) % 3
    wide = EdgeTensors(torch.arange(90), rel, torch.arange(90) * 2, torch.ones(90))
    narrow = EdgeTensors(wide.lhs.int(), rel.int(), wide.rhs.int(), None)
    config = config_of("unused", (1.0, 1.0, 1.0))
    relations = config.relations[:1] if dynamic else config.relations
    config = config.model_copy(update={"batch_size": 7, "dynamic_relations": dynamic, "relations": relations})
    cuts = [
        list(batches.cut_for_training(config, each, torch.Generator().manual_seed(1), {}))
        for each in (wide, narrow)
    ]
    assert len(cuts[0]) > 3
    columns = [
        [[*each.index.values(), each.weight_B, *([each.rel_B] if dynamic else [])] for each in found]
        for found in cuts
    ]
    torch.testing.assert_close(*columns, rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("num_blocks", [1, 3])
def test_copies_are_held_out_together_in_all_chunks_passes_and_epochs(tmp_path, rng, num_blocks):
    """Whatever rows a visit numbers its edges by: the weight of an edge tells which edge it is."""
    settings = {"num_partitions": 4, "global_emb": False, "eval_fraction": 0.3, "num_edge_chunks": 2}
    config = make_config(tmp_path, **settings, train={"resident": "always" if num_blocks == 1 else "never"})
    edges = random_triples(rng, 40, 1, 40, 150)
    chosen = rng.permutation(np.concatenate([np.arange(150), np.arange(0, 150, 2)]))
    write_graph(config, {"node": 40}, edges[chosen], weight=(chosen + 2).astype(np.float32))
    kept, held = [], []
    for *_, read in read_visits(config, num_blocks):
        for found, part in zip((kept, held), batches.split(read, torch.Generator()), strict=True):
            found += part.weights.tolist()
    assert not set(kept) & set(held)
    assert sorted(kept + held) == sorted(2 * (chosen + 2).tolist())
    assert 20 < len(set(held)) < 70


MANY_ROWS = 40_000


def group(counts, side=Side.RHS, weight=1.0):
    count_Q = torch.tensor(counts, dtype=torch.long)
    answer_A = torch.arange(int(count_Q.sum()))
    weight_A = torch.full((len(answer_A),), weight)
    return QueryGroup(0, side, torch.arange(len(counts)), None, count_Q, answer_A, weight_A, 1.0)


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=800),
    st.lists(st.integers(1, 50), min_size=1, max_size=800),
    st.sampled_from([0, 9_000, 90_000]),
    st.sampled_from([1_000, 4_000]),
)
def test_the_heaviest_within_the_limits(lhs, rhs, more, num):
    groups, rows = [group(lhs, Side.LHS), group(rhs, weight=2.0)], [MANY_ROWS, more]
    masks = exact(groups, rows, num)
    assert [len(mask) for mask in masks] == [len(lhs), len(rhs)]
    parts = [(each.sum_weights(), mask, size) for each, mask, size in zip(groups, masks, rows, strict=True)]
    counted = [part for part in parts if part[2]]
    chosen, left = ([w for ws, m, _ in counted for w in ws[m == is_exact].tolist()] for is_exact in (1, 0))
    total = len(chosen) + len(left)
    assert len(chosen) <= total / candidates.ONE_OF
    assert sum(size * int(mask.sum()) for _, mask, size in counted) <= num * total / 2
    assert all(not mask.any() for _, mask, size in parts if not size)
    if chosen:
        assert min(chosen) >= max(left)
        assert min(chosen) > sum(chosen + left) / (total + (len(rhs) if not more else 0))


def test_only_heavy_queries_are_exact():
    (none,) = exact([group([3] * 6400)], [10_000], 4_000)
    assert not none.any()
    (some,) = exact([group([1] * 6300 + [9] * 200)], [10_000], 4_000)
    assert some.nonzero()[:, 0].tolist() == list(range(6300, 6300 + 6500 // candidates.ONE_OF))


def star(num):
    """Edges of many lhs to one rhs, and as many of a pair each."""
    many = torch.arange(num, dtype=torch.int32)
    lhs, rhs = torch.cat([many, many]), torch.cat([torch.zeros_like(many), many])
    return EdgeTensors(lhs, torch.zeros_like(lhs), rhs, None)


def asking(candidates):
    config = all_negs("complex_diagonal", "dot", True, train={"candidates": candidates})
    return config.model_copy(update={"batch_size": 64})


def cut(config, edges, num_rows):
    rows = {side: [num_rows] for side in Side}
    return list(batches.cut_for_training(config, edges, torch.Generator().manual_seed(0), rows))


@pytest.mark.parametrize(
    ("candidates", "num_rows", "num_exact"),
    [(500, 2000, 1), (1001, 2000, 0), (None, 2000, 0), (500, candidates.MOST_ELEMENTS, 0)],
    ids=["sampled", "a small table", "no sample", "a large table"],
)
def test_the_query_with_many_answers_is_exact(candidates, num_rows, num_exact):
    config, edges = asking(candidates), star(2000)
    found, again = cut(config, edges, num_rows), cut(config, edges, num_rows)
    for one, other in zip(found, again, strict=True):
        assert one.takes_sample == other.takes_sample
        assert torch.equal(one.entity_Q, other.entity_Q)
    whole = [batch for batch in found if not batch.takes_sample]
    assert sum(len(batch.entity_Q) for batch in whole) == num_exact
    assert all(batch.side is Side.LHS and batch.entity_Q.tolist() == [0] for batch in whole)
    sampler = CandidateSampler(config)
    assert all(sampler.draw(batch, 2000, torch.Generator()) is batch for batch in whole)
    asked = sorted(
        (side, int(entity), int(answer))
        for batch in found
        for side in [batch.side]
        for entity, answer in zip(batch.entity_Q[batch.query_A], batch.answer_A, strict=True)
    )
    ends = zip(edges.lhs.tolist(), edges.rhs.tolist(), strict=True)
    assert asked == sorted(each for lhs, rhs in ends for each in ((Side.LHS, rhs, lhs), (Side.RHS, lhs, rhs)))
    assert sum(batch.num_edges for batch in found) == len(edges)
