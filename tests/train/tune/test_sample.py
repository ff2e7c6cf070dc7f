"""The tuner's graph: its entities are the densest, and its files hold the edges between them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from graphmill import storage
from graphmill.errors import ConfigError
from graphmill.formats import edge_buckets, entity_counts
from graphmill.vocab import Bucket
from tests.train.graphs import make_config, random_triples, write_graph
from train.tune.sample import densest, peeled, write_sample

NUM = 12
pairs = arrays.arrays(np.int64, st.tuples(st.integers(1, 60), st.just(2)), elements=st.integers(0, NUM - 1))


def core_numbers(pairs_E2):
    """The largest k of each entity whose k-core holds it, by removing entities one at a time."""
    numbers = np.zeros(NUM, int)
    for k in range(1, 2 * len(pairs_E2) + 1):
        left = set(range(NUM))
        while True:
            inside = [(a, b) for a, b in pairs_E2.tolist() if a in left and b in left]
            degree = {n: sum((a == n) + (b == n) for a, b in inside) for n in left}
            if all(count >= k for count in degree.values()):
                break
            left = {n for n in left if degree[n] >= k}
        if not left:
            break
        numbers[sorted(left)] = k
    return numbers


@settings(max_examples=30)
@given(pairs, st.integers(0, 5))
def test_peeling_goes_from_core_to_core(pairs_E2, seed):
    order_N = peeled(pairs_E2[:, 0], pairs_E2[:, 1], NUM, seed)
    assert sorted(order_N) == list(range(NUM))
    cores_in_order = core_numbers(pairs_E2)[np.argsort(order_N)]
    assert (np.diff(cores_in_order) >= 0).all()


@settings(max_examples=30)
@given(pairs, st.integers(1, 60))
def test_as_many_edges_as_fit_are_chosen(pairs_E2, most_edges):
    lhs_E, rhs_E = pairs_E2.T
    is_chosen_N = densest(lhs_E, rhs_E, NUM, most_edges, 0)
    num_inside = (is_chosen_N[lhs_E] & is_chosen_N[rhs_E]).sum()
    assert num_inside <= most_edges
    order_N = peeled(lhs_E, rhs_E, NUM, 0)
    if not is_chosen_N.all():  # one entity more is too much
        first = order_N >= order_N[~is_chosen_N].max()
        assert (first[lhs_E] & first[rhs_E]).sum() > most_edges


def test_what_is_left_of_a_tree_is_a_tree():
    child = np.arange(1, 1000)
    is_chosen_N = densest(child, (child - 1) // 3, 1000, 200, 0)
    inside = is_chosen_N[child] & is_chosen_N[(child - 1) // 3]
    assert 0 < inside.sum() == is_chosen_N.sum() - 1  # connected, without loops


@pytest.fixture
def config(tmp_path, rng):
    """Two types, one of them in two partitions, and two relations; the second is between them."""
    config = make_config(
        tmp_path,
        entities={"a": {"num_partitions": 2}, "b": {"num_partitions": 1}},
        relations=[
            {"name": "r", "lhs": "a", "rhs": "a", "operator": "diagonal"},
            {"name": "s", "lhs": "a", "rhs": "b", "operator": "diagonal"},
        ],
    )
    write_graph(config, {"a": 60, "b": 30}, triples(rng, 3000))
    return config


def triples(rng, num_edges):
    found = random_triples(rng, 60, 2, 30, num_edges)
    assert found[:, 2].max() < 30
    return found


def read(folder, split):
    edges = edge_buckets.read_bucket(storage.join(folder, "edges", split), Bucket(0, 0))
    return np.stack([edges.lhs, edges.rel, edges.rhs])


def test_a_small_graph_is_taken_whole(config, tmp_path):
    folder = str(tmp_path / "sample")
    found = write_sample(config, folder, "valid", 10_000)
    assert found.num_entities == {"a": 60, "b": 30}
    assert found.is_held_out
    assert found.num_edges + found.num_valid == 3000
    assert 400 < found.num_valid < 600  # 500, by the edges' hashes
    assert entity_counts.list_counts(storage.join(folder, "entities")) == {"a": [60], "b": [30]}
    whole = np.concatenate([read(folder, "train"), read(folder, "valid")], axis=1)
    assert len({tuple(each) for each in whole.T.tolist()}) == 3000
    degree_R = [np.bincount(whole[0, whole[1] == r], minlength=60) for r in (0, 1)]
    parts = [edge_buckets.read_bucket(config.edge_paths[0], Bucket(i, j)) for i in (0, 1) for j in (0, 1)]
    expected = sum(np.bincount(each.lhs[each.rel == 1], minlength=30) for each in parts)
    assert (degree_R[1][:30] + degree_R[1][30:] == expected).all()  # partition after partition


def test_the_same_seed_writes_the_same_bytes(config, tmp_path):
    for name in ("one", "two"):
        write_sample(config, str(tmp_path / name), "valid", 1500)
    assert (read(str(tmp_path / "one"), "train") == read(str(tmp_path / "two"), "train")).all()
    assert (read(str(tmp_path / "one"), "valid") == read(str(tmp_path / "two"), "valid")).all()


def test_validation_edges_are_those_of_the_split(config, tmp_path, rng):
    write_graph(config, {"a": 60, "b": 30}, triples(rng, 600), path=config.split_path("dev"))
    found = write_sample(config, str(tmp_path / "sample"), "dev", 10_000)
    assert (found.num_edges, found.num_valid, found.is_held_out) == (3000, 600, False)


def test_a_part_of_the_graph_has_edges_between_its_entities_only(config, tmp_path):
    found = write_sample(config, str(tmp_path / "sample"), "valid", 1500)
    assert found.num_edges + found.num_valid <= 1500
    for split in ("train", "valid"):
        lhs, rel, rhs = read(str(tmp_path / "sample"), split)
        assert lhs.max() < found.num_entities["a"]
        for relation, name in enumerate("ab"):
            assert rhs[rel == relation].max() < found.num_entities[name]


def test_of_a_large_graph_the_first_partitions_are_read(config, tmp_path):
    found = write_sample(config, str(tmp_path / "sample"), "valid", 10_000, most_read=1000)
    assert found.num_entities == {"a": 30, "b": 30}
    first = edge_buckets.read_bucket(config.edge_paths[0], Bucket(0, 0))
    whole = np.concatenate([read(str(tmp_path / "sample"), split) for split in ("train", "valid")], axis=1)
    assert sorted(whole.T.tolist()) == sorted(np.stack([first.lhs, first.rel, first.rhs]).T.tolist())


def test_copies_of_an_edge_are_held_out_together(config, tmp_path, rng):
    edges = triples(rng, 1000)
    write_graph(config, {"a": 60, "b": 30}, np.concatenate([edges, edges[::2], edges[::3], edges[::3]]))
    found = write_sample(config, str(tmp_path / "sample"), "valid", 10_000)
    assert found.is_held_out
    train, valid = (read(str(tmp_path / "sample"), split).T.tolist() for split in ("train", "valid"))
    assert len(train) + len(valid) == 2168
    assert not set(map(tuple, train)) & set(map(tuple, valid))
    assert 300 < len(set(map(tuple, valid))) < 700


def test_few_edges_are_refused(tmp_path, rng):
    config = make_config(tmp_path)
    write_graph(config, {"node": 30}, random_triples(rng, 30, 1, 30, 100))
    with pytest.raises(ConfigError, match="100 edges are too few"):
        write_sample(config, str(tmp_path / "sample"), "valid", 1000)
    write_graph(config, {"node": 30}, np.repeat(random_triples(rng, 30, 1, 30, 1), 800, axis=0))
    with pytest.raises(ConfigError, match="1 different edges are too few"):
        write_sample(config, str(tmp_path / "sample"), "valid", 1000)
