"""The tuner's graph, candidates and halving of the budget."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from graphmill import storage
from graphmill.config.partitions import all_buckets
from graphmill.errors import ConfigError
from graphmill.formats import edge_buckets, entity_counts
from graphmill.vocab import Bucket
from tests.train.graphs import make_config, node_graph, random_triples, relation, write_edges, write_graph
from train import job
from train.tune.sample import _first_buckets, densest, peeled, write_sample
from train.tune.search import FIRST_EPOCHS, MOST_ENTITIES, Trial, candidates, judged, search
from train.tune.tuner import changed

NUM = 12
SPLITS = ("train", "valid", "unseen")
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


@pytest.fixture
def config(tmp_path, rng):
    """Two types, one of them in two partitions, and two relations; the second is between them."""
    config = make_config(
        tmp_path,
        entities={"a": {"num_partitions": 2}, "b": {"num_partitions": 1}},
        relations=[relation(lhs="a", rhs="a"), relation(name="s", lhs="a", rhs="b")],
    )
    write_graph(config, {"a": 60, "b": 30}, triples(rng, 3000))
    return config


def triples(rng, num_edges):
    found = random_triples(rng, 60, 2, 30, num_edges)
    assert found[:, 2].max() < 30
    return found


@pytest.fixture
def sample(tmp_path):
    return str(tmp_path / "sample")


def read(folder, *splits):
    """The edges of these splits, one after another: [3, E]."""
    paths = [storage.join(folder, "edges", split) for split in splits]
    found = [edge_buckets.read_bucket(path, Bucket(0, 0)) for path in paths]
    return np.concatenate([[each.lhs, each.rel, each.rhs] for each in found], axis=1)


def test_a_small_graph_is_taken_whole(config, sample, tmp_path):
    """The same seed writes the same bytes."""
    for folder in (sample, str(tmp_path / "again")):
        found = write_sample(config, folder, "valid", 10_000)
        assert found.num_entities == {"a": 60, "b": 30}
        assert found.is_held_out
        assert found.num_edges + found.num_valid + found.num_unseen == 3000
        assert 200 < found.num_valid < 300  # 250, by the edges' hashes
        assert 200 < found.num_unseen < 300
        assert entity_counts.list_counts(storage.join(folder, "entities")) == {"a": [60], "b": [30]}
    whole, again = (read(folder, *SPLITS) for folder in (sample, str(tmp_path / "again")))
    assert (whole == again).all()
    assert len({tuple(each) for each in whole.T.tolist()}) == 3000
    degree_R = [np.bincount(whole[0, whole[1] == r], minlength=60) for r in (0, 1)]
    parts = [edge_buckets.read_bucket(config.edge_paths[0], bucket) for bucket in all_buckets(config)]
    expected = sum(np.bincount(each.lhs[each.rel == 1], minlength=30) for each in parts)
    assert (degree_R[1][:30] + degree_R[1][30:] == expected).all()  # partition after partition


def test_validation_edges_are_those_of_the_split(config, sample, rng):
    test = triples(rng, 40)
    write_edges(config, triples(rng, 600), config.split_path("dev"))
    write_edges(config, test, config.split_path("test"))
    found = write_sample(config, sample, "dev", 10_000)
    assert (found.num_edges, found.num_valid + found.num_unseen, found.is_held_out) == (3000, 600, False)
    assert 250 < found.num_valid < 350
    known = read(sample, "known")  # filters rankings, and judges nothing
    dev = read(sample, *SPLITS[1:])
    others = Counter(map(tuple, known.T.tolist())) - Counter(map(tuple, dev.T.tolist()))
    assert sorted(rel for _, rel, _ in others.elements()) == sorted(test[:, 1].tolist())


def test_a_part_of_the_graph_has_edges_between_its_entities_only(config, sample):
    found = write_sample(config, sample, "valid", 1500)
    assert found.num_edges + found.num_valid + found.num_unseen <= 1500
    for split in SPLITS:
        lhs, rel, rhs = read(sample, split)
        assert lhs.max() < found.num_entities["a"]
        for number, name in enumerate("ab"):
            assert rhs[rel == number].max() < found.num_entities[name]


def test_of_a_large_graph_the_first_partitions_are_read(config, sample, tmp_path, rng):
    found = write_sample(config, sample, "valid", 10_000, most_read=1200)
    assert found.num_entities == {"a": 30, "b": 30}
    first = edge_buckets.read_bucket(config.edge_paths[0], Bucket(0, 0))
    whole = read(sample, *SPLITS)
    assert sorted(whole.T.tolist()) == sorted(np.stack([first.lhs, first.rel, first.rhs]).T.tolist())
    parts = {"entities": {"a": {"num_partitions": 3}}, "relations": [relation(lhs="a", rhs="a")]}
    write_graph(
        wide := make_config(tmp_path / "wide", **parts), {"a": 60}, random_triples(rng, 60, 1, 60, 900)
    )
    assert {max(bucket) for bucket in _first_buckets(wide, 450)} == {0, 1}


def test_of_a_large_partition_the_edges_between_a_part_of_its_entities_are_read(config, sample, rng):
    """They are in memory together, and rankings know all other edges between these entities."""
    counts, most = {"a": 200, "b": 100}, 5000
    write_graph(config, counts, random_triples(rng, 200, 2, 100, 20_000))
    write_graph(config, counts, random_triples(rng, 200, 2, 100, 20_000), path=config.split_path("test"))
    assert edge_buckets.count_edges(config.edge_paths[0], Bucket(0, 0)) > most
    write_sample(config, sample, "valid", 10_000, most_read=most)
    kept = read(sample, *SPLITS)
    assert most / 3 < kept.shape[1] <= most
    assert len(set(kept[0].tolist())) < 90  # of 100
    assert set(read(sample, "known")[0].tolist()) == set(kept[0].tolist())


def test_copies_of_an_edge_are_held_out_together(config, sample, rng):
    edges = triples(rng, 600)
    write_graph(config, {"a": 60, "b": 30}, np.concatenate([edges, edges[::2], edges[::3], edges[::3]]))
    found = write_sample(config, sample, "valid", 10_000)
    assert found.is_held_out
    parts = [read(sample, split).T.tolist() for split in SPLITS]
    train, valid, unseen = (set(map(tuple, part)) for part in parts)
    assert sum(map(len, parts)) == 1300
    assert not train & valid | train & unseen | valid & unseen
    assert 200 < len(valid | unseen) < 400  # of 600 a half, however many copies there are


def test_few_edges_are_refused(tmp_path, sample, rng):
    config = node_graph(tmp_path, rng, 30, 100)
    with pytest.raises(ConfigError, match="too few edges to tune with: 100"):
        write_sample(config, sample, "valid", 1000)
    write_graph(config, {"node": 30}, np.repeat(random_triples(rng, 30, 1, 30, 1), 800, axis=0))
    with pytest.raises(ConfigError, match=r"too few different edges .*: 1"):
        write_sample(config, sample, "valid", 1000)


@dataclass
class Simulated:
    """Candidates with a quality and seconds of an epoch; the MRR of a candidate grows with its epochs."""

    quality: list[float]
    epoch_s: list[float]
    begun: list[tuple[int, int, int]] = field(default_factory=list)

    def search(self, budget_s, slots=1, most_epochs=64):
        changes = [{"lr": number} for number in range(len(self.quality))]
        return search(changes, self.run, self.work, budget_s=budget_s, most_epochs=most_epochs, slots=slots)

    def work(self, changes):
        return 3 * self.epoch_s[changes["lr"]]

    def run(self, wave, epochs, rung):
        found = []
        for each in wave:
            number = each["lr"]
            self.begun.append((rung, number, epochs))
            mrr = self.quality[number] * epochs / (epochs + 1)
            found.append(Trial(dict(each), rung, epochs, epochs * self.epoch_s[number], mrr, mrr))
        return found


searches = st.integers(1, 30).flatmap(
    lambda count: st.builds(
        Simulated,
        st.lists(st.floats(0.01, 1), min_size=count, max_size=count),
        st.lists(st.floats(0.1, 5), min_size=count, max_size=count),
    )
)


def spent_s(trials, slots):
    total = 0.0
    for rung in {each.rung for each in trials}:
        of_rung = [each.seconds for each in trials if each.rung == rung]
        total += sum(max(of_rung[start : start + slots]) for start in range(0, len(of_rung), slots))
    return total


@given(searches, st.floats(50, 2000), st.integers(1, 4))
def test_the_best_of_a_rung_gets_to_the_next(simulated, budget_s, slots):
    trials = simulated.search(budget_s, slots)
    best_of = [
        max(simulated.quality[each.changes["lr"]] for each in trials if each.rung == rung)
        for rung in range(1 + max(each.rung for each in trials))
    ]
    assert len(set(best_of)) == 1
    before, best = judged(trials)
    assert (before.changes, before.rung) == ({"lr": 0}, trials[-1].rung)
    assert simulated.quality[best.changes["lr"]] == best_of[0]


@given(searches, st.floats(1, 2000), st.integers(1, 4), st.integers(1, 64))
def test_in_the_budget_rungs_have_fewer_candidates_and_more_epochs(simulated, budget_s, slots, most_epochs):
    trials = simulated.search(budget_s, slots, most_epochs)
    begun = list(simulated.begun)
    assert simulated.search(budget_s, slots, most_epochs) == trials
    assert simulated.begun == 2 * begun
    first_s = max(each.seconds for each in trials[:slots])  # nothing was measured before
    assert spent_s(trials, slots) <= max(budget_s, first_s) * (1 + 1e-9)
    rungs = [[each for each in trials if each.rung == n] for n in range(1 + trials[-1].rung)]
    epochs = [{each.epochs for each in rung} for rung in rungs]
    assert all(len(each) == 1 for each in epochs)
    flat = [each.pop() for each in epochs]
    assert flat[0] == min(FIRST_EPOCHS, most_epochs)
    assert flat == sorted(set(flat))
    assert flat[-1] <= most_epochs
    sizes = [len(rung) for rung in rungs]
    assert sizes == sorted(sizes, reverse=True)


def test_time_is_used():
    simulated = Simulated([0.1 * number for number in range(9)], [1.0] * 9)
    trials = simulated.search(100, most_epochs=1000)
    assert len([each for each in trials if each.rung == 0]) == 9
    assert spent_s(trials, 1) > 90
    assert judged(trials)[1].changes == {"lr": 8}
    assert spent_s(simulated.search(100, 3, most_epochs=1000), 3) > 90
    uneven = Simulated([0.1] * 3, [2.0, 0.1, 20.0])  # the slowest of all tells how long the last would take
    uneven.work = lambda changes: 10 if changes["lr"] == 2 else 1
    assert {each.changes["lr"] for each in uneven.search(20)} == {0, 1}
    dear = Simulated([0.5, 0.6, 0.1], [5.0, 5.0, 1.0])
    assert {each.rung for each in dear.search(60)} == {0, 1}
    for budget_s in (0.5, 3.0):  # too little for two
        assert len(Simulated([0.1, 0.2], [1.0, 5.0]).search(budget_s)) == 1


@pytest.mark.parametrize(("unseen", "winner"), [(0.31, {"lr": 1}), (0.3, {})])
def test_what_is_not_better_on_unseen_edges_changes_nothing(unseen, winner):
    last = Trial({}, 1, 8, 4.0, 0.35, 0.3), Trial({"lr": 1}, 1, 8, 4.0, 0.4, unseen)
    trials = [Trial({}, 0, 2, 1.0, 0.2, 0.2), Trial({"lr": 1}, 0, 2, 1.0, 0.3, 0.1), *last]
    before, best = judged(trials)
    assert before == last[0]
    assert best.changes == winner


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"comparator": "l2", "loss_fn": "logistic"},
        *({"dimension": 9}, {"dimension": 10}),
        {"relations": [relation("none")]},
        {"dynamic_relations": True},
    ],
)
def test_candidates_are_valid_different_and_the_same_each_time(tmp_path, settings):
    config = make_config(tmp_path, **settings)
    found = candidates(config, 1000, 27)
    assert found[0] == {}
    assert len(found) == 27
    assert all(each.get("dimension", 8) % 2 == 0 for each in found)
    configs = [changed(config, each) for each in found]
    assert len({each.model_dump_json() for each in configs}) == 27
    assert candidates(config, 1000, 27) == found
    other = config.model_copy(update={"seed": 1})
    assert candidates(other, 1000, 27) != found


@pytest.mark.parametrize(
    ("settings", "largest", "exact"),
    [
        ({}, MOST_ENTITIES + 1, True),
        ({"comparator": "l2"}, MOST_ENTITIES, True),
        ({"comparator": "l2"}, MOST_ENTITIES + 1, False),
        ({"bias": True}, MOST_ENTITIES + 1, False),
        ({"loss_fn": "logistic"}, 100, False),
    ],
)
def test_one_vs_all_is_for_softmax_and_small_types_or_samples(tmp_path, settings, largest, exact):
    config = make_config(tmp_path, **settings)
    found = [changed(config, each) for each in candidates(config, largest, 27)]
    assert any(each.relations[0].all_negs for each in found) == exact
    for each in found:
        job.check(each, [])  # every candidate can be trained


def test_the_second_candidate_of_a_configuration_with_all_negatives_is_its_recipe(tmp_path):
    train = {"relation_init": "small", "lr_schedule": "linear"}
    ranked = make_config(tmp_path, loss_fn="ranking")
    assert {each.get("margin") for each in candidates(ranked, 100, 27)} == {None, 0.05, 0.2, 0.5}
    config = make_config(tmp_path, relations=[relation(all_negs=True)], lr=0.5, train=train)
    assert candidates(config, 100, 2)[1] == {
        "lr": 0.05, "regularization_coef": 0.2, "batch_size": 64, "train.candidates": 4000,
    }  # fmt: skip
