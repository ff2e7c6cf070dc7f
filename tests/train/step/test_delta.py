"""Which edges of a delta are trained: all that etl has added, and a replay of the others."""

from collections import Counter, defaultdict
from pathlib import Path

import distributed
import numpy as np
import pytest
import torch

from graphmill.config import Config
from graphmill.config.partitions import all_buckets
from graphmill.formats import edge_buckets
from graphmill.vocab import Bucket
from tests.pairs import pairs
from tests.train.deltas import RELATIONS, TwoDays, is_old
from tests.train.graphs import read_visits
from train import job
from train.edges import batches
from train.edges.batches import TRAINED, Role

pytestmark = pytest.mark.slow
ADDED_FROM = 30_000  # weights of the added file are larger
Chosen = dict[tuple[int, int], dict[Bucket, list[int]]]  # weights by epoch and chunk, by bucket
Days = dict[int, TwoDays]  # by the number of partitions


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory, near_client: distributed.Client) -> Days:
    """The graph with one partition of each type, and with two; the first day is trained."""
    own = {"weights": True, "global_emb": False}
    roots = {number: tmp_path_factory.mktemp(f"days{number}") for number in (1, 2)}
    return {
        n: TwoDays(root, near_client, partitions=n, **own).trained(num_epochs=1) for n, root in roots.items()
    }


def weights_of(config: Config, bucket: Bucket) -> list[int]:
    """Weights of all rows of a bucket, in order."""
    weight = edge_buckets.read_bucket(config.edge_paths[0], bucket).weight
    assert weight is not None
    return list(map(int, weight))


def chosen(config: Config) -> Chosen:
    """Edges that a run trains on."""
    found: Chosen = defaultdict(dict)
    for iteration, bucket, edges in read_visits(config):
        weights = edges.weights.long().tolist()
        assert edges.has_role(Role.ADDED).tolist() == [weight > ADDED_FROM for weight in weights]
        found[iteration.epoch_idx, iteration.edge_chunk_idx][bucket] = weights
    return found


@pytest.mark.parametrize(("number", "replay", "chunks"), pairs([1, 2], [0.0, 2.5, 100.0], [1, 3]))
def test_all_added_edges_and_a_replay_of_others(days: Days, number: int, replay: float, chunks: int) -> None:
    config = days[number].second(num_epochs=3, num_edge_chunks=chunks, train={"replay": replay})
    found = chosen(config)
    assert len(found) == 3 * chunks
    of_old_ends = [row for row, (lhs, _, rhs) in enumerate(days[number].new) if is_old(lhs) and is_old(rhs)]
    added = {ADDED_FROM + 1 + row for row in of_old_ends}
    drawn: dict[int, Counter[int]] = {epoch: Counter() for epoch in range(3)}
    for (epoch, chunk), buckets in found.items():
        for bucket, weights in buckets.items():
            rows = weights_of(config, bucket)
            rows = rows[len(rows) * chunk // chunks : len(rows) * (chunk + 1) // chunks]
            own = [weight for weight in rows if weight in added]
            others = [weight for weight in rows if weight < ADDED_FROM]
            assert weights == [weight for weight in rows if weight in set(weights)]  # rows keep their order
            assert [weight for weight in weights if weight > ADDED_FROM] == own
            replayed = [weight for weight in weights if weight < ADDED_FROM]
            assert len(replayed) == len(set(replayed)) == min(len(others), int(replay * len(own) + 0.5))
            drawn[epoch].update(weights)
    for count in drawn.values():
        assert set(count.values()) == {1}
        assert {weight for weight in count if weight > ADDED_FROM} == added
    assert replay != 2.5 or drawn[0] != drawn[1] != drawn[2] != drawn[0]


def test_a_seed_draws_its_replay(days: Days) -> None:
    ours, again, theirs = (chosen(days[1].second(num_epochs=1, seed=seed)) for seed in (0, 0, 5))
    assert ours == again != theirs


def test_edges_are_held_out_among_added_ones(days: Days) -> None:
    """The same in every epoch, and never trained; the earlier run has learned from the others."""
    held = defaultdict[Bucket, list[set[int]]](list)
    for _, bucket, edges in read_visits(days[2].second(num_epochs=3, eval_fraction=0.3)):
        kept, out = batches.split(edges, torch.Generator().manual_seed(1))
        weights = set(out.weights.long().tolist())
        assert min(weights, default=ADDED_FROM + 1) > ADDED_FROM
        assert not weights & set(kept.weights.long().tolist())
        left_out = edges.is_held_out & edges.has_role(Role.REPLAYED)
        assert len(kept) + len(out) == len(edges) - int(left_out.sum())
        held[bucket].append(weights)
    assert all(first == second == third for first, second, third in held.values())
    assert sum(len(first) for first, *_ in held.values()) > 5


@pytest.mark.parametrize("num", [1, 2])
def test_blocks_choose_the_same_edges_as_buckets(days: Days, num: int) -> None:
    """However partitions are joined; two passes over a bucket's file round its replay twice."""
    config = days[2].second(num_epochs=2, train={"replay": 0.5})
    found: dict[int, list[int]] = {0: [], 1: []}
    for iteration, _, edges in read_visits(config, num):
        weights = edges.weights.long().tolist()
        assert edges.has_role(Role.ADDED).tolist() == [weight > ADDED_FROM for weight in weights]
        found[iteration.epoch_idx] += weights
    for (epoch, _), alone in chosen(config).items():
        expected, own = sorted(each for weights in alone.values() for each in weights), sorted(found[epoch])
        if num == 1:
            assert own == expected
        added = [weight for weight in expected if weight > ADDED_FROM]
        assert [weight for weight in own if weight > ADDED_FROM] == added
        assert len(own) == len(set(own))
        assert abs(len(own) - len(expected)) <= 4 * num


def test_figures_tell_the_trained_edges(days: Days, tmp_path: Path) -> None:
    """The count of each bucket in training_stats.json is that of the chosen edges."""
    config = days[2].second("figures", num_epochs=2, num_edge_chunks=3, train={"replay": 0.5})
    figures = job.run(config, days[2].client)
    expected = Counter[int]()
    for (epoch, _), buckets in chosen(config.model_copy(update={"checkpoint_path": str(tmp_path)})).items():
        expected[epoch] += sum(map(len, buckets.values()))
    assert Counter({n: each["edges"] for n, each in enumerate(figures["epochs"])}) == expected
    assert 0 < figures["num_edges"] == sum(expected.values())
    total = np.sum([len(weights_of(config, bucket)) for bucket in all_buckets(config)])
    assert expected[0] < total / 2


@pytest.mark.parametrize("num", [None, 1])
def test_other_answers_of_queries_come_along(days: Days, num: int | None) -> None:
    """With 1-vs-all: every edge of a query that is trained is there, and once."""
    relations = [each | {"all_negs": each["name"] == "saw"} for each in RELATIONS]
    number = [each["name"] for each in relations].index("saw")
    delta, all_of_files = (
        days[2].second(relations=relations, num_epochs=1, train={"replay": replay}) for replay in (1.0, None)
    )
    num_known = 0
    for (*_, edges), (*_, whole) in zip(read_visits(delta, num), read_visits(all_of_files, num), strict=True):
        own, known = edges.of_role(*TRAINED), edges.of_role(Role.KNOWN)
        assert edges.num_trained == len(own)
        all_edges = set(edges.weights.tolist())
        assert len(all_edges) == len(edges)
        for entity_E, own_E in ((whole.lhs, own.lhs), (whole.rhs, own.rhs)):
            asked = own_E[own.rel == number]
            answers = (whole.rel == number) & torch.isin(entity_E, asked)
            assert set(whole.weights[answers].tolist()) <= all_edges
        num_known += int((known.rel == number).sum())
    assert num_known > 20
