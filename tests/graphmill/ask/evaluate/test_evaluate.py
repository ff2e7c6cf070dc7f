"""Ranking, held against an oracle that knows neither blocks nor matrix products, and against PBG."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import distributed
import numpy as np
import pytest
import torch

from graphmill import config as configuration
from graphmill import storage
from graphmill.ask import edges
from graphmill.ask.evaluate import evaluate, job, ranking
from graphmill.ask.model import Model
from graphmill.checkpoints import pbg
from graphmill.config import Config
from graphmill.config.sections.evaluate import EvaluateConfig
from graphmill.errors import ConfigError, FormatError, NotFoundError
from graphmill.formats import edge_buckets, entity_counts
from graphmill.formats.edge_buckets import Edges
from graphmill.gpu import device
from graphmill.model.built_in import COMPARATORS, OPERATORS
from graphmill.run.reading import same_edges
from graphmill.vocab import Bucket, Side
from tests import DATA
from tests.graphmill.ask.evaluate.test_comparison import model_of
from tests.graphmill.ask.predict.world import DIMENSION, KINDS, Triple, World, write_edges, write_world
from tests.pairs import pairs
from tests.remap.graph import ITERATION

TIE = 1e-9  # copies tie exactly, in float64 too
SMALL = {"user": [70, 1], "item": [30]}  # rows by type and partition


def ranked_by_hand(world: World, split: str, *known_edges: set[Triple]) -> list[dict[str, float]]:
    """The metrics with each of several sets of known edges: docs/formats/pbg_v1.md, in float64."""
    ranks: list[list[tuple[int, int]]] = [[] for _ in known_edges]
    relations = {rel for _, rel, _ in world.edges[split]}
    scores = {key: world.scores(*key) for key in itertools.product(relations, Side)}
    for edge, side in itertools.product(world.edges[split], Side):
        lhs, rel, rhs = edge
        query, answer = (lhs, rhs) if side is Side.RHS else (rhs, lhs)
        row = scores[rel, side][query]
        ahead, is_equal = row - row[answer], np.isclose(row, row[answer], rtol=TIE, atol=TIE)
        rivals = [(lhs, rel, each) if side is Side.RHS else (each, rel, rhs) for each in range(len(row))]
        for known, own in zip(known_edges, ranks, strict=True):
            counts = np.array([each != edge and each not in known for each in rivals])
            own.append((int((counts & ~is_equal & (ahead > 0)).sum()), int((counts & is_equal).sum())))
    return [_means(np.array(each), len(world.edges[split])) for each in ranks]


def _means(ranks: np.ndarray, num_edges: int) -> dict[str, float]:
    metrics: dict[str, float] = {"num_edges": num_edges, "of_edges": num_edges, "sampled": False}
    greater, equal = ranks.T
    for suffix, rank in (("", 1 + greater + equal / 2), ("_pessimistic", 1 + greater + equal)):
        metrics[f"mrr{suffix}"] = float((1 / rank).mean())
        metrics[f"mean_rank{suffix}"] = float(rank.mean())
        metrics |= {f"hits@{k}{suffix}": float((rank <= k).mean()) for k in (1, 3, 10, 50)}
    return metrics


# ---- worlds


def missing_loops(world: World) -> set[Triple]:
    """The loops of all entities, for the relations of which no training edge is a loop."""
    relations = range(3 if world.config.dynamic_relations else 2)
    numbers = {rel: range(len(world.vectors[world.types(rel)[Side.LHS]])) for rel in relations}
    return {(each, rel, each) for rel in relations if not world.may_be_itself(rel) for each in numbers[rel]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operator", "comparator", "kind", "counts", "loops", "bias", "section"),
    pairs(
        [*OPERATORS],
        [*COMPARATORS],
        [*KINDS],
        [SMALL, {"user": [5, 0, 70], "item": [30, 5, 1]}],
        [True, False],
        [True, False],
        [
            {"block_bytes": 40 * 64 * 4, "query_bytes": 20_000, "precision": "bfloat16"},
            {"block_bytes": 1 << 20, "precision": "float32"},
        ],
    ),
)
def test_equals_the_oracle(tmp_path, operator, comparator, kind, counts, loops, bias, section):
    """Many vectors are copies of others, in other partitions too."""
    own = {"counts": counts, "loops": loops, "num_distinct": 9, "bias": bias, "workers": 3 if loops else 1}
    world = write_world(tmp_path, operator=operator, comparator=comparator, **own, **KINDS[kind])
    everything = {edge for edges in world.edges.values() for edge in edges}
    known = everything, set(), everything | missing_loops(world), set(world.edges["train"])
    expected = ranked_by_hand(world, "test", *known)
    ways = [{"filtered": True}, {"filtered": False}, {"leave_out_itself": True}]
    ways.append({"filter_paths": [world.config.split_path("train")]})
    for way, metrics in zip(ways, expected, strict=True):
        found = evaluate.evaluate(world.config.with_section(EvaluateConfig(**section, **way)))
        assert found["metrics"] == pytest.approx(metrics, rel=1e-9)
        assert found["itself"] == ("left out" if "leave_out_itself" in way else "ranked")


def _small(root: Path, **settings: Any) -> World:
    evaluated = {"block_bytes": 40 * 64 * 4}
    return write_world(root, operator="linear", counts=SMALL, num_distinct=9, evaluate=evaluated, **settings)


def _with(world: World, **section: Any) -> Config:
    given = world.config.evaluate.model_dump(exclude_unset=True)
    return world.config.with_section(EvaluateConfig(**given | section))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_gpu_ranks_as_the_cpu(tmp_path, monkeypatch, gpus, dynamic):
    world = _small(tmp_path, dynamic=dynamic)
    config = world.config.model_copy(update={"num_gpus": 1, "evaluate": EvaluateConfig()})
    expected = evaluate.evaluate(world.config)["metrics"]
    kernels = device.kernels_of(device.device_of(1))
    shapes, kernels_count = [], kernels.count_above

    def count_above(query_QD: torch.Tensor, table_ND: torch.Tensor, score_Q: torch.Tensor) -> Any:
        shapes.append((len(query_QD), len(table_ND)))
        return kernels_count(query_QD, table_ND, score_Q)

    monkeypatch.setattr(ranking, "can_rank", lambda config, device: True)
    monkeypatch.setattr(kernels, "count_above", count_above)
    assert evaluate.evaluate(config)["metrics"] == pytest.approx(expected)
    assert {num_rows for _, num_rows in shapes} == {70, 1, 30}  # whole partitions, not blocks of scores


def test_queries_of_matrices_are_made_in_small_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = _small(tmp_path, dynamic=True)
    expected = evaluate.evaluate(world.config)["metrics"]
    sizes = []
    make = Model.query

    def query(model: Model, relation: int, side: Side, vectors: torch.Tensor, rel: Any) -> torch.Tensor:
        sizes.append(len(vectors))
        return make(model, relation, side, vectors, rel)

    monkeypatch.setattr(Model, "query", query)
    monkeypatch.setattr(ranking, "MATRIX_BYTES", 3 * 4 * DIMENSION**2)
    assert evaluate.evaluate(world.config)["metrics"] == expected
    assert max(sizes) == 3
    assert sum(size < 3 for size in sizes) <= len(Side)  # the last of a side, whatever the relation


def test_candidates_of_older_configurations_have_no_effect(tmp_path, caplog):
    caplog.set_level("INFO", "graphmill")
    world = _small(tmp_path)
    expected = evaluate.evaluate(world.config)["metrics"]
    assert "no effect" not in caplog.text
    assert evaluate.evaluate(_with(world, candidates=3))["metrics"] == expected
    assert "evaluate.candidates has no effect" in caplog.text


def test_a_chosen_version(tmp_path: Path) -> None:
    world = _small(tmp_path)
    expected = evaluate.evaluate(world.config)["metrics"]
    root = world.config.checkpoint_path
    pbg.keep(root, 1, "epoch_1")
    _write_rows(world, 1.0, version=2)
    pbg.write_model(root, 2, {}, {}, {}, ITERATION)
    storage.write_text(storage.join(root, "checkpoint_version.txt"), "2")
    tied = evaluate.evaluate(_with(world, filtered=False))["metrics"]
    assert tied["hits@1"] == 0
    assert tied["mean_rank_pessimistic"] > 2 * tied["mean_rank"] - 2
    assert evaluate.evaluate(_with(world, checkpoint_version=1))["metrics"] == expected
    pbg.commit(root, 2, preserve_epoch=None)  # leaves version 1 in its epoch alone
    assert evaluate.evaluate(_with(world, checkpoint_version=1))["metrics"] == expected
    told = r"evaluate\.checkpoint_version: .* has no complete version 3; complete versions: 1, 2"
    with pytest.raises(ConfigError, match=told):
        evaluate.evaluate(_with(world, checkpoint_version=3))


def test_as_a_job(tmp_path: Path, near_client: distributed.Client) -> None:
    world = _small(tmp_path)
    before = torch.get_num_threads()
    figures = job.run(world.config, near_client)
    alone = evaluate.evaluate(world.config)
    assert figures["metrics"] == alone["metrics"]
    assert figures["baselines"].keys() == {"random", "most_popular", "neighbors"}
    assert "baselines" not in alone  # a validation during training does without
    by_side = [each[side] for each in figures["metrics_by_relation"] for side in Side]
    near = figures["baselines"].pop("neighbors")
    assert near.keys() > {"mrr", "hits@10", "num_edges"}
    assert near["num_edges"] == figures["metrics"]["num_edges"]  # all of them
    assert near["mrr_vectors"] == pytest.approx(figures["metrics"]["mrr"])
    assert near["margin"] == 0
    for name, baseline in figures["baselines"].items():
        mean = sum(each[f"mrr_{name}"] * each["num_edges"] for each in by_side)
        assert mean / (2 * figures["metrics"]["num_edges"]) == pytest.approx(baseline["mrr"])
    assert figures["checkpoint_version"] == 1
    assert torch.get_num_threads() == before
    assert job.output_uris(world.config) == []


def test_edges_to_rank_that_are_given_as_those_to_train(tmp_path, near_client, caplog):
    """`-p edge_paths=data/test_partitioned`, as users of PBG evaluate: the checkpoint knows better."""
    config = _small(tmp_path).config
    pbg.write_config(config.checkpoint_path, config.pbg())
    of_pbg = configuration.from_mapping(config.model_dump() | {"edge_paths": [config.split_path("test")]})
    figures, expected = (job.run(each, near_client) for each in (of_pbg, config))
    for key in ("metrics", "baselines"):
        assert figures[key] == expected[key]
    assert "is one of edge_paths" not in caplog.text
    pbg.write_config(config.checkpoint_path, of_pbg.pbg())
    job.run(of_pbg, near_client)
    assert "is one of edge_paths" in caplog.text


def test_edges_are_the_same_under_both_names_of_their_split(tmp_path: Path) -> None:
    """A split that is one of edge_paths goes by its folder's name, or by a word in it."""
    config = _small(tmp_path).config
    storage.move(config.split_path("test"), folder := config.split_path("x-test"))
    given = config.model_dump() | {"edge_paths": [*config.edge_paths, folder]}
    splits = ({"evaluate": {"split": name}} for name in ("test", "x-test"))
    one, other = (evaluate.evaluate(configuration.from_mapping(given | split)) for split in splits)
    assert (one["metrics"], same_edges(one, other)) == (other["metrics"], True)


def test_fingerprint_tells_what_matters(tmp_path: Path) -> None:
    world = _small(tmp_path)
    before = job.fingerprint(world.config)
    assert job.fingerprint(_with(world, block_bytes=1 << 20)) == before
    assert job.fingerprint(_with(world, filtered=False)) != before
    edge_buckets.write_bucket(
        world.config.split_path("test"), Bucket(0, 0), Edges(*(np.zeros(1, np.int64) for _ in range(3)))
    )
    assert job.fingerprint(world.config) != before


@pytest.mark.parametrize(("operator", "dimension"), [*zip(OPERATORS, itertools.cycle((6, 10, 100)))])
def test_copies_tie_to_the_last_bit(dimension: int, operator: str) -> None:
    generator = torch.Generator().manual_seed(0)
    for comparator, num_queries, side in itertools.product(COMPARATORS, (1, 3, 64), Side):
        model = model_of(comparator, False, dimension, "auto", operator)
        for key, initial in model.state_dict().items():
            model.parameters[key] = torch.randn(initial.shape, generator=generator)
        columns_DN = torch.randn(dimension, 128, generator=generator)
        copies = torch.randperm(128, generator=generator)[:40]
        columns_DN[:, copies] = columns_DN[:, :1].clone()
        queries = model.query(0, side, torch.randn(num_queries, dimension, generator=generator))
        scores = model.matrix_scores(queries, model.candidates(0, side, columns_DN.T))[:, copies]
        assert (scores == scores[:, :1]).all()


# ---- PBG's own checkpoints


def test_pbg_dynamic_checkpoint() -> None:
    root = DATA / "pbg_v1_dyn"
    settings = pbg.read_config(str(root / "checkpoint")) | {
        "entity_path": str(root / "entities"),
        "edge_paths": [str(root / "edges")],
        "checkpoint_path": str(root / "checkpoint"),
        "edge_root": str(root),
        "evaluate": {"split": "edges", "filtered": False},
    }
    fields = (root / "eval.txt").read_text().removeprefix("Stats: ").split(",")
    by_pbg = {name.strip(): float(value) for name, value in (field.split(":") for field in fields)}
    found = evaluate.evaluate(configuration.from_mapping(settings))["metrics"]
    names = {"mrr": "mrr", "pos_rank": "mean_rank", "r1": "hits@1", "r10": "hits@10", "r50": "hits@50"}
    for theirs, ours in names.items():
        assert found[f"{ours}_pessimistic"] == pytest.approx(by_pbg[theirs], rel=1e-5, abs=1e-5), theirs
    assert found["num_edges"] == by_pbg["count"]


# ---- bad input


def test_checks_before_an_evaluation(tmp_path: Path) -> None:
    world = _small(tmp_path)
    config = world.config
    implicit = config.model_copy(update={"evaluate": EvaluateConfig()})
    assert job.check(implicit) == ""
    assert job.check(_with(world, enabled=False)) == "evaluate.enabled is false"
    empty = config.split_path("none")
    write_edges(config, SMALL, [], empty)
    assert job.check(_with(world, split="none")) == f"{empty} holds no edges"
    with pytest.raises(FormatError, match="expected edges to rank, found none"):
        evaluate.evaluate(_with(world, split="none"))
    for section, key in (({"split": "tset"}, "split"), ({"filter_paths": ["/tset"]}, "filter_paths")):
        with pytest.raises(ConfigError, match=rf"evaluate\.{key}: there is no folder .*tset; splits there"):
            job.check(_with(world, **section))
    job.check(_with(world, split="tset"), coming=[config.split_path("tset")])
    storage.delete(config.split_path("test"))
    assert job.check(implicit).startswith(f"there is no folder {config.split_path('test')} of edges")
    features = {name: each.model_copy(update={"featurized": True}) for name, each in config.entities.items()}
    featurized = config.model_copy(update={"entities": features})
    assert job.check(featurized).startswith("item, user: a featurized type has no list of all")
    pbg.write_config(config.checkpoint_path, config.pbg() | {"comparator": "cos"})
    with pytest.raises(ConfigError, match=r'trained with other settings: comparator: "cos" -> "dot"'):
        evaluate.evaluate(config)
    storage.delete(config.checkpoint_path)
    with pytest.raises(NotFoundError, match="there is no checkpoint to evaluate; train first"):
        evaluate.evaluate(config)


def _write_rows(world: World, number: float, *types: str, version: int = 1) -> None:
    """Vectors of nothing but one number."""
    for name in types or SMALL:
        world.write_rows(name, np.full((sum(SMALL[name]), DIMENSION), number, np.float32), version)


def _out_of_range(world: World, *edge: int) -> None:
    """30 items: within the range of the users on the same side, but not of this relation."""
    edges = Edges(*(np.array([0, value], np.int64) for value in edge))
    edge_buckets.write_bucket(world.config.split_path("test"), Bucket(0, 0), edges)


BEYOND = r"edges_0_0\.h5: {}\[1\] is \d+; expected less than \d+"
DAMAGE: dict[str, tuple[Callable[[World], object], str]] = {
    "a missing bucket": (
        lambda world: storage.delete(edge_buckets.bucket_uri(world.config.split_path("test"), Bucket(1, 1))),
        r"edges_1_1\.h5",
    ),
    "lhs": (lambda world: _out_of_range(world, 10**6, 0, 0), BEYOND.format("lhs")),
    "rel": (lambda world: _out_of_range(world, 0, 2, 0), BEYOND.format("rel")),
    "rhs": (lambda world: _out_of_range(world, 0, 0, 30), BEYOND.format("rhs")),
    "other entities": (
        lambda world: entity_counts.write_count(world.config.entity_path, "item", 0, 31),
        r"embeddings_item_0\.v1\.h5: embeddings have shape \(30, 6\).*; set entity_path and dimension as in",
    ),
    "no number": (
        lambda world: _write_rows(world, np.nan, "item"),
        r"embeddings_item_0\.v1\.h5.*: expected finite numbers",
    ),
    "too large a score": (lambda world: _write_rows(world, 1e30), "an edge's score is not a finite number"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_refused(tmp_path: Path, name: str) -> None:
    world = _small(tmp_path)
    damage, message = DAMAGE[name]
    damage(world)
    with pytest.raises(FormatError, match=message) as found:
        evaluate.evaluate(world.config)
    assert "init_path" not in str(found.value)  # advice for training


@pytest.mark.slow
def test_known_edges_of_many_buckets(tmp_path: Path) -> None:
    """Edges are not counted first: each edge of each folder is in one piece."""
    world = write_world(tmp_path, counts=dict.fromkeys(("user", "item"), [3] * 13))
    graph, expected = edges.Graph(world.config, world.counts), world.edges.items()
    found = {world.config.split_path(split): 0 for split, _ in expected}
    trained = world.config.split_path("train")
    tasks = evaluate.pieces(None, world.config, [*found], [trained])
    assert 1 < len(tasks) < 2 * 13 * 13
    for piece in itertools.chain.from_iterable(tasks):
        assert (piece.is_known, piece.is_trained) == (True, piece.path == trained)
        found[piece.path] += sum(map(len, graph.read(piece)))
    assert found == {world.config.split_path(split): len(own) for split, own in expected}
