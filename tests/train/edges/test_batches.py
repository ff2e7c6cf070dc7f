"""Edges as they are read, batches, buckets, candidates: all edges once, the same held out, unbiased sums."""

import math
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphmill.checkpoints.pbg import Iteration
from graphmill.config.sections.train import TrainConfig
from graphmill.errors import ConfigError, FormatError
from graphmill.formats import edge_buckets
from graphmill.formats.edge_buckets import Edges
from graphmill.run import seeds
from graphmill.vocab import Bucket, Side
from tests.train.graphs import make_config, node_graph, random_triples, read_visits, relation, write_graph
from tests.train.step.test_plain import Scene
from tests.train.step.test_queries import all_negs
from train import job
from train.edges import batches, candidates
from train.edges.batches import EdgeTensors
from train.edges.candidates import CandidateSampler, exact
from train.edges.negative_sampling import Sampling, popularity
from train.edges.one_vs_all import QueryBatch, QueryGroup
from train.edges.own_rows import BlockRows, OwnRows
from train.edges.visits import elimination_order, ordered_buckets
from train.gpu import reference
from train.gpu.fused_pass import FusedPass, grouped
from train.gpu.fused_step import FusedStep
from train.run.bucket import lr_scale, share_done, share_of_negatives
from train.step.queries import QueryStep

RELATIONS = [relation("none", name=f"r{i}") for i in range(4)]


def numbered(rel) -> EdgeTensors:
    """Edges whose lhs is their own number."""
    number = torch.arange(len(rel))
    return EdgeTensors(number, torch.tensor(rel, dtype=torch.int64), number + 1000, number.float())


def cut(dynamic, edges, batch_size, seed=0):
    relations = RELATIONS[:1] if dynamic else RELATIONS
    config = make_config("unused", relations=relations, dynamic_relations=dynamic, batch_size=batch_size)
    return list(batches.cut(config, edges, torch.Generator().manual_seed(seed)))


@given(dynamic=st.booleans(), rel=st.lists(st.integers(0, 3), max_size=150), batch_size=st.integers(1, 20))
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


def test_order_is_random_and_repeatable():
    edges = numbered([0, 1] * 50)
    orders = [
        tuple(n for batch in cut(False, edges, 10, seed) for n in batch.index[Side.LHS].tolist())
        for seed in (1, 1, 2)
    ]
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] != tuple(sorted(orders[0]))


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


def test_about_the_fraction_is_held_out():
    fraction = 0.05
    columns = np.divmod(np.arange(10_000), 100)
    is_held = seeds.held_out((columns[0], np.zeros(10_000, int), columns[1]), fraction, 7)
    assert abs(is_held.mean() - fraction) < 5 * (fraction * (1 - fraction) / 10_000) ** 0.5


@given(held=st.lists(st.booleans(), max_size=50))
def test_held_out_edges_are_the_rest(held):
    edges = replace(numbered([0] * len(held)), is_held_out=torch.tensor(held, dtype=torch.bool))
    kept, rest = batches.split(edges, torch.Generator().manual_seed(7))
    assert sorted(rest.lhs.tolist()) == [row for row, each in enumerate(held) if each]
    assert kept.lhs.tolist() == [row for row, each in enumerate(held) if not each]


ORDERS = ("affinity", "inside_out", "outside_in", "random")
partitions = st.integers(1, 9)
bucket_seeds = st.integers(0, 2**63 - 1)


@pytest.mark.parametrize("order", [*ORDERS, "elimination"])
@given(num_lhs=partitions, num_rhs=partitions, slots=st.integers(2, 6), seed=bucket_seeds)
def test_each_bucket_once(order, num_lhs, num_rhs, slots, seed):
    ordered = partial(ordered_buckets, order, num_lhs, num_rhs, seed)
    if order == "elimination":
        ordered = partial(elimination_order, num_lhs, num_rhs, slots, seed)
    assert sorted(ordered()) == [Bucket(*pair) for pair in product(range(num_lhs), range(num_rhs))]
    assert ordered() == ordered()


@pytest.mark.parametrize("order", ORDERS)
def test_other_seeds_give_other_orders(order):
    assert len({tuple(ordered_buckets(order, 4, 4, seed)) for seed in range(20)}) > 5


@given(num_lhs=partitions, num_rhs=partitions, seed=bucket_seeds)
def test_layers_come_from_the_outside_or_from_the_inside(num_lhs, num_rhs, seed):
    for order in ("outside_in", "inside_out"):
        layers = [min(bucket) for bucket in ordered_buckets(order, num_lhs, num_rhs, seed)]
        assert layers == sorted(layers, reverse=order == "inside_out")


@given(order=st.sampled_from(["inside_out", "outside_in"]), num=partitions, seed=bucket_seeds)
def test_within_a_layer_buckets_share_a_partition_and_follow_their_transposes(order, num, seed):
    buckets = ordered_buckets(order, num, num, seed)
    for one, two in pairwise(buckets):
        assert min(one) != min(two) or set(one) & set(two)
    place = {bucket: number for number, bucket in enumerate(buckets)}
    for bucket in buckets:
        assert abs(place[bucket] - place[Bucket(bucket.rhs, bucket.lhs)]) == (bucket.lhs != bucket.rhs)


@given(num_lhs=partitions, num_rhs=partitions, seed=bucket_seeds)
def test_affinity_shares_a_partition_while_it_can(num_lhs, num_rhs, seed):
    buckets = ordered_buckets("affinity", num_lhs, num_rhs, seed)
    for number in range(1, len(buckets)):
        last = buckets[number - 1]
        could = any(set(last) & set(bucket) for bucket in buckets[number:])
        assert bool(set(last) & set(buckets[number])) is could


def loads(buckets, slots):
    """Partitions that have to be loaded, if of those in memory the one that is needed last has to leave."""
    held, count = set(), 0
    for number, bucket in enumerate(buckets):
        for part in set(bucket) - held:
            count += 1
            while len(held | set(bucket)) > slots:
                coming = {p: next((n for n, b in enumerate(buckets[number:]) if p in b), 10**9) for p in held}
                held.remove(max(held - set(bucket), key=coming.get))
            held.add(part)
    return count


@pytest.mark.parametrize(("num", "slots", "most"), [(16, 4, 46), (32, 8, 86), (8, 8, 8), (8, 2, 29)])
def test_elimination_loads_seldom(num, slots, most):
    """The figures of Marius' BETA order, against some three times as many of inside_out."""
    count = loads(elimination_order(num, num, slots, 1), slots)
    assert count <= most
    if slots == 4:
        assert loads(ordered_buckets("inside_out", num, num, 1), slots) > 2 * count


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
    ("column", "value"), [("lhs", 5), ("rel", 2**31), ("rhs", 2**32 + 1), ("lhs", 2**62), ("weight", 1e10)]
)
def test_a_number_out_of_range_is_refused(tmp_path, column, value):
    config = config_of(tmp_path, (1e6,))
    columns = {name: np.array([0, 0]) for name in edge_buckets.COLUMNS} | {column: np.array([0, value])}
    edge_buckets.write_bucket(config.edge_paths[0], BUCKET, Edges(**columns))
    expected = "times its relation's .* a number up to" if column == "weight" else "is .*; expected less"
    with pytest.raises(FormatError, match=rf"{column}\[1\] {expected}"):
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


def cut_for_training(config, edges, num_rows):
    rows = {side: [num_rows] for side in Side}
    return list(batches.cut_for_training(config, edges, torch.Generator().manual_seed(0), rows))


@pytest.mark.parametrize(
    ("candidates", "num_rows", "num_exact"),
    [(500, 2000, 1), (1001, 2000, 0), (None, 2000, 0), (500, candidates.MOST_ELEMENTS, 0)],
    ids=["sampled", "a small table", "no sample", "a large table"],
)
def test_the_query_with_many_answers_is_exact(candidates, num_rows, num_exact):
    config, edges = asking(candidates), star(2000)
    found, again = cut_for_training(config, edges, num_rows), cut_for_training(config, edges, num_rows)
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


def sampler(num):
    return CandidateSampler(all_negs("none", "dot", True, train={"candidates": num}))


def batch(num=3, weight=1.0):
    whole, weights = torch.arange(num), torch.full((num,), weight)
    return QueryBatch(
        0, Side.RHS, num, whole, None, torch.ones(num), weights, whole, whole, weights, whole, torch.ones(num)
    )


def drawing(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("num", "rows"), [(5, 9), (5, 5), (None, 100)])
def test_small_tables_are_compared_as_a_whole(num, rows):
    same = batch()
    own = sampler(num)
    assert own.draw(same, rows, drawing()) is same
    own.learn(same)


@given(st.integers(1, 40), st.integers(0, 60), st.integers(0, 5), st.floats(0, 1))
def test_rows_come_twice_at_most(num, more, seed, share):
    rows, draw = 2 * num + more, drawing(seed)
    own = sampler(num)
    for _ in range(4):
        drawn = own.draw(batch(), rows, draw)
        found = drawn.candidate_C.tolist()
        assert found == sorted(found)
        assert 0 <= found[0] <= found[-1] < rows
        assert max(map(found.count, found)) <= 2
        assert bool((drawn.log_weight_C >= -1e-6).all())  # a row stands for itself at least
        drawn.mass_C[: 1 + int(share * (num - 1))] = 100.0
        own.learn(drawn)


@pytest.mark.parametrize("all_negs", [False, True])
def test_the_first_steps_of_a_run_draw_few(tmp_path, rng, monkeypatch, all_negs):
    """Negatives of edges, and candidates of queries."""
    train = {"candidates": 40 if all_negs else None, "first_negatives": 0.25, "engine": "plain"}
    settings = {"num_batch_negs": 0, "num_uniform_negs": 40, "num_epochs": 4, "batch_size": 100}
    relations = [relation("none", all_negs=all_negs)]
    config = node_graph(tmp_path, rng, 200, 400, relations=relations, train=train, **settings)
    drawn = []
    draw, blocks = CandidateSampler.draw, Sampling.blocks
    monkeypatch.setattr(
        CandidateSampler,
        "draw",
        lambda *given: drawn.append(len((found := draw(*given)).candidate_C)) or found,
    )
    monkeypatch.setattr(
        Sampling, "blocks", lambda self, *given: drawn.append(self.num_uniform_negs) or blocks(self, *given)
    )
    job.train(config)
    assert drawn == sorted(drawn)
    assert set(drawn) == {10, 20, 40}
    assert drawn.count(20) == pytest.approx(len(drawn) / 2, abs=2)


@pytest.mark.slow
@pytest.mark.parametrize("share", [1.0, 0.25])
def test_weighted_sums_are_those_of_all_rows(share):
    """With mass on a few rows; and the rows with mass come more often."""
    own, draw = sampler(20), drawing()
    values = torch.rand(100, generator=draw, dtype=torch.float64)
    sums, counts = [], torch.zeros(100)
    for number in range(4000):
        drawn = own.draw(batch(), 100, draw, share)
        assert len(drawn.candidate_C) == 20 * share
        drawn.mass_C.copy_((drawn.candidate_C < 10) * 1.0)
        own.learn(drawn)
        if number >= 1000:
            sums.append(float((values[drawn.candidate_C] * drawn.log_weight_C.exp()).sum()))
            counts += torch.bincount(drawn.candidate_C, minlength=100)
    assert float(torch.tensor(sums).mean()) == pytest.approx(float(values.sum()), rel=0.01)
    assert counts[:10].min() > 2 * counts[10:].max() > 0
    assert counts.min() > 0


def test_a_bucket_draws_the_same_again():
    scene = Scene(all_negs("none", "dot", True, train={"candidates": 4}))
    step = QueryStep(scene.config, scene.model, scene.adagrad)
    found = []
    for _ in range(2):
        step.begin_bucket()
        own, draw, rows = step.candidates, drawing(3), []
        for _ in range(5):
            drawn = own.draw(batch(), 50, draw)
            drawn.mass_C.copy_(torch.rand(4, generator=draw))
            own.learn(drawn)
            rows.append(drawn.candidate_C)
        found.append(torch.stack(rows))
    assert torch.equal(*found)


def test_mass_does_not_depend_on_the_number_or_weight_of_queries():
    masses = []
    for num, weight in ((3, 1.0), (30, 0.5)):
        own = sampler(4)
        drawn = own.draw(batch(num, weight), 50, drawing())
        drawn.mass_C.copy_(torch.full((4,), 0.1 * num * weight))
        own.learn(drawn)
        masses.append(own.draw(batch(), 50, drawing(1)).candidate_C)
    assert torch.equal(*masses)


def test_rows_without_any_mass_are_drawn_alike():
    own, draw = sampler(4), drawing()
    for _ in range(2000):  # until all shares underflow
        drawn = own.draw(batch(), 8, draw)
        own.learn(drawn)
    assert bool(drawn.log_weight_C.isfinite().all())
    assert drawn.log_weight_C.exp().sum() == pytest.approx(8, rel=0.3)


def drawn(config, edges, blocks):
    """The rows of lhs and rhs, [C, K], of batch after batch between five rows."""
    generator = torch.Generator().manual_seed(0)
    rows, tables = {side: [5] for side in Side}, dict.fromkeys(Side, range(5))
    for batch in batches.cut_for_training(config, edges, generator, rows, blocks=blocks):
        for block in Sampling.of_training(config).blocks(batch, tables, generator):
            yield block.rows.values()


def drawn_by_fused_step(config, edges, blocks):
    """The same of step after step."""
    scene, found = Scene(config, counts={"node": 5}, dtype=torch.float32), []
    fused = FusedPass(FusedStep(config, scene.model, scene.adagrad, CPU))
    watched = {"sample": lambda *given: found.append(drawn := reference.sample(*given)) or drawn}
    fused.step.kernels = SimpleNamespace(**vars(reference) | watched)
    fused.run(*grouped(config, edges, blocks), [list(scene.side_tables.values())], seed=0)
    return [each.rows_SCK for each in found]


@pytest.mark.parametrize("own_weight", [1.0, 0.25])
@pytest.mark.parametrize(("power", "draws"), [(0.0, drawn), (0.5, drawn), (0.0, drawn_by_fused_step)])
def test_negatives_are_drawn_as_often_as_edges_ask(power, draws, own_weight):
    """Rows of an entity's own block, 0 and 1 or 2 to 4, come by their weight."""
    config = make_config("unused", batch_size=100, num_batch_negs=1, num_uniform_negs=200, global_emb=False,
                         train={"negative_power": power, "chunk_edges": 1})  # fmt: skip
    lhs = torch.tensor([0] * 99 + [1] * 24 + [2] * 3)
    rhs = torch.tensor([3] * 63 + [4] * 63)
    edges = EdgeTensors(lhs, torch.zeros_like(lhs), rhs, torch.ones(len(lhs)))
    blocks = BlockRows(own_weight, {config.relations[0].lhs: (2, 5)})
    counts = torch.zeros(2, 5)
    for rows in draws(config, edges, blocks):
        counts += torch.stack([torch.bincount(of_side[:, 1:].flatten(), minlength=5) for of_side in rows])
    weight_25 = torch.tensor([[own_weight] * 2 + [1.0] * 3, [1.0] * 2 + [own_weight] * 3])  # by who asks
    degrees = [99, 24, 3, 0, 0], [0, 0, 0, 63, 63]
    for count_5, degree_5, asking in zip(counts, degrees, (rhs, lhs), strict=True):
        expected_25 = weight_25 * (1 + torch.tensor(degree_5)) ** power
        share_25 = expected_25 / expected_25.sum(1, keepdim=True)
        expected_5 = share_25[(asking >= 2).long()].mean(0)
        torch.testing.assert_close(count_5 / count_5.sum(), expected_5, atol=0.01, rtol=0.05)


def test_all_negatives_have_own_rows_by_their_weight():
    generator = torch.Generator().manual_seed(0)
    found = [OwnRows(2, 5, 0.25).compared(7, generator) for _ in range(1000)]
    share_7 = torch.bincount(torch.cat(found)) / len(found)
    torch.testing.assert_close(share_7, torch.tensor([1, 1, 0.25, 0.25, 0.25, 1, 1]), atol=0.06, rtol=0)


def test_running_sums_of_popularity():
    """They start above zero."""
    assert popularity(torch.tensor([0, 0, 2]), 3, 1.0).tolist() == [3, 4, 6]
    assert popularity(torch.tensor([], dtype=torch.int64), 2, 0.5).tolist() == [1, 2]


class TestLearningRate:
    """Schedules are functions of how much of the run is done."""

    @pytest.mark.parametrize(
        ("schedule", "expected"),
        [
            ("constant", [1, 1, 1, 1]),
            ("linear", [1, 0.92, 0.6, 0.2]),
            ("cosine", [1, 0.6 + 0.4 * math.cos(0.1 * math.pi), 0.6, 0.2]),
        ],
    )
    def test_beginning_middle_and_end(self, schedule, expected):
        settings = TrainConfig(lr_schedule=schedule, lr_final=0.2)
        found = [lr_scale(settings, done) for done in (0.0, 0.1, 0.5, 1.0)]
        assert found == pytest.approx(expected)

    def test_negatives_double(self):
        for first, expected in (
            (1, [1, 1, 1, 1]),
            (0.125, [1 / 8, 1 / 4, 1 / 2, 1]),
            (0.3, [0.3, 0.5, 0.5, 1]),
        ):
            settings = TrainConfig(first_negatives=first)
            found = [share_of_negatives(settings, done) for done in (0.0, 0.3, 0.6, 1.0)]
            assert found == expected

    def test_progress_counts_epochs_paths_and_chunks(self):
        seen = [
            share_done(Iteration(2, epoch, 3, path, "", 2, chunk), share)
            for epoch in range(2)
            for path in range(3)
            for chunk in range(2)
            for share in (0.0, 0.5)
        ]
        assert seen == pytest.approx([number / 24 for number in range(24)])

    def test_a_rate_that_falls_to_nothing_and_popular_negatives_change_the_result(self, tmp_path):
        losses = set()
        falling = {"lr_schedule": "linear", "lr_final": 0.0}
        for number, train in enumerate(({}, falling, {"negative_power": 0.75})):
            config = make_config(tmp_path / str(number), train=train, num_epochs=3)
            write_graph(config, {"node": 9}, np.array([[i, 0, (i + 1) % 9] for i in range(9)]))
            losses.add(job.train(config)["loss"])
        assert len(losses) == 3

    def test_shares_are_shares(self, tmp_path):
        with pytest.raises(ConfigError, match=r"train\.lr_final"):
            make_config(tmp_path, train={"lr_final": 1.5})
