"""Ranking, held against an oracle that knows neither blocks nor matrix products, and against PBG."""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import distributed
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from graphmill import config as configuration
from graphmill import storage
from graphmill.ask.evaluate import evaluate, job, ranker
from graphmill.ask.model import Model
from graphmill.checkpoints import pbg
from graphmill.config import Config
from graphmill.config.sections.evaluate import EvaluateConfig
from graphmill.errors import ConfigError, FormatError, NotFoundError
from graphmill.formats import edge_buckets, entity_counts
from graphmill.formats.edge_buckets import Edges
from graphmill.gpu import device
from graphmill.model.built_in import COMPARATORS, OPERATORS
from graphmill.vocab import Bucket, Side
from tests import DATA
from tests.train.oracle import operate

ITERATION = pbg.Iteration(1, 0, 1, 0, "train", 1, 0)

TIE = 1e-9  # copies tie exactly, in float64 too

Entity = tuple[str, int, int]  # type, partition, index
Edge = tuple[Entity, int, Entity]


@dataclass
class World:
    """A small graph with an embedding, on disk and in plain Python."""

    config: Config
    tables: Mapping[tuple[str, int], np.ndarray]
    parameters: Mapping[str, np.ndarray]
    splits: Mapping[str, Sequence[Edge]]

    def entities(self, entity_type: str) -> list[Entity]:
        return [
            (name, partition, index)
            for (name, partition), table in self.tables.items()
            if name == entity_type
            for index in range(len(table))
        ]


# ---- the oracle: docs/formats/pbg_v1.md, one score at a time, in float64


def _compare(config: Config, a: np.ndarray, b: np.ndarray) -> float:
    if config.bias:
        return float(a[0] + b[0]) + _compare(config.model_copy(update={"bias": False}), a[1:], b[1:])
    match config.comparator:
        case "dot":
            return float(a @ b)
        case "cos":
            norms = np.linalg.norm(a) * np.linalg.norm(b)
            return float(a @ b / norms) if norms else 0.0
        case "l2":
            return -float(np.linalg.norm(a - b))
    return -float((a - b) @ (a - b))


def _oracle_score(world: World, edge: Edge, corrupted: Side) -> float:
    config = world.config
    relation = 0 if config.dynamic_relations else edge[1]
    kind = config.relations[relation].operator

    def vector(entity: Entity) -> np.ndarray:
        x = world.tables[entity[:2]][entity[2]].astype(np.float64)
        shift = world.parameters[f"global_embs.emb_{entity[0]}"] if config.global_emb else 0
        return x + shift

    def transformed(side: Side, x: np.ndarray) -> np.ndarray:
        prefix = f"{side}_operators.{relation}."
        names = OPERATORS[kind].parameter_names(config.dynamic_relations)
        own = [world.parameters[prefix + name].astype(np.float64) for name in names]
        own = [value[edge[1]] for value in own] if config.dynamic_relations else own
        return operate(kind, [*map(torch.from_numpy, own)], torch.from_numpy(x)).numpy()

    lhs, rhs = vector(edge[0]), vector(edge[2])
    if config.dynamic_relations and corrupted is Side.RHS:
        return _compare(config, transformed(Side.LHS, lhs), rhs)
    return _compare(config, lhs, transformed(Side.RHS, rhs))


def _oracle_metrics(world: World, split: str, *known_edges: Sequence[Edge]) -> list[dict[str, float]]:
    """The metrics with each of several sets of known edges."""
    ranks: list[list[tuple[int, int]]] = [[] for _ in known_edges]
    score_of = functools.cache(functools.partial(_oracle_score, world))  # edges share their rivals
    sets = [set(known) for known in known_edges]
    for edge, side in itertools.product(world.splits[split], Side):
        own = edge[0] if side is Side.LHS else edge[2]
        score = score_of(edge, side)
        rivals = []
        for other in world.entities(own[0]):
            rival = (other, *edge[1:]) if side is Side.LHS else (*edge[:2], other)
            if other != own:
                rivals.append((rival, score_of(rival, side) - score))
        equal = {rival for rival, ahead in rivals if abs(ahead) < TIE * max(1, abs(score))}
        greater = {rival for rival, ahead in rivals if ahead > 0} - equal
        for known, own_ranks in zip(sets, ranks, strict=True):
            own_ranks.append((len(greater - known), len(equal - known)))
    return [_means(np.array(each), len(world.splits[split])) for each in ranks]


def _missing_loops(world: World) -> list[Edge]:
    """The loops of all entities, for the relations of which no training edge is a loop."""
    config = world.config
    relations = range(NUM_DYNAMIC if config.dynamic_relations else len(config.relations))
    have_loops = {rel for lhs, rel, rhs in world.splits["train"] if lhs == rhs}
    entries = {rel: config.relations[0 if config.dynamic_relations else rel] for rel in relations}
    return [
        (entity, rel, entity)
        for rel, entry in entries.items()
        if entry.lhs == entry.rhs and rel not in have_loops
        for entity in world.entities(entry.lhs)
    ]


def _means(ranks: np.ndarray, num_edges: int) -> dict[str, float]:
    metrics: dict[str, float] = {"num_edges": num_edges, "of_edges": num_edges, "sampled": False}
    greater, equal = ranks.T
    for suffix, rank in (("", 1 + greater + equal / 2), ("_pessimistic", 1 + greater + equal)):
        metrics[f"mrr{suffix}"] = float((1 / rank).mean())
        metrics[f"mean_rank{suffix}"] = float(rank.mean())
        metrics |= {f"hits@{k}{suffix}": float((rank <= k).mean()) for k in (1, 3, 10, 50)}
    return metrics


# ---- worlds


def _on_disk(world: World) -> None:
    config = world.config
    for (entity_type, partition), table in world.tables.items():
        entity_counts.write_count(config.entity_path, entity_type, partition, len(table))
        pbg.write_embeddings(
            config.checkpoint_path, entity_type, partition, 1, table, None, config.pbg(), ITERATION
        )
    if config.dynamic_relations:
        entity_counts.write_relation_count(config.entity_path, NUM_DYNAMIC)
    state = {key: torch.from_numpy(value) for key, value in world.parameters.items()}
    pbg.write_model(config.checkpoint_path, 1, state, {}, config.pbg(), ITERATION)
    pbg.commit(config.checkpoint_path, 1, preserve_epoch=None)
    _write_splits(world)


def _write_splits(world: World) -> None:
    config = world.config
    grid = itertools.product(*(range(config.num_side_partitions(side)) for side in Side))
    for number, bucket in enumerate(Bucket(*each) for each in grid):
        for split, edges in world.splits.items():
            own = [edge for edge in edges if _bucket_of(config, edge) == bucket]
            columns = [[e[0][2] for e in own], [e[1] for e in own], [e[2][2] for e in own]]
            lhs, rel, rhs = (np.array(column, np.int64) for column in columns)
            dtype = (np.int32, np.int64)[number % 2]
            with edge_buckets.new_bucket(
                config.split_path(split), bucket, len(own), index_dtype=dtype
            ) as writer:
                writer.append(Edges(lhs, rel, rhs))


def _bucket_of(config: Config, edge: Edge) -> Bucket:
    """Edges of unpartitioned entities are spread over all buckets of their side."""
    spread = edge[0][2] + edge[1] + edge[2][2]
    sides = []
    for side, entity in ((Side.LHS, edge[0]), (Side.RHS, edge[2])):
        num = config.num_side_partitions(side)
        partitioned = config.entities[entity[0]].num_partitions > 1
        sides.append(entity[1] if partitioned else spread % num)
    return Bucket(*sides)


NUM_DYNAMIC = 3


@st.composite
def worlds(draw: st.DrawFn) -> tuple[dict[str, Any], int]:
    """A configuration and the seed of everything random in it."""
    dynamic = draw(st.booleans())
    num_partitions = draw(st.integers(1, 3))
    types = {
        "user": {"num_partitions": num_partitions, "dimension": 4},
        "item": {"num_partitions": draw(st.sampled_from((1, num_partitions))), "dimension": 4},
        "tag": {"num_partitions": 1, "dimension": 6},
    }
    pairs = [("user", "user"), ("user", "item"), ("item", "user"), ("item", "item"), ("tag", "tag")]
    num_relations = 1 if dynamic else draw(st.integers(1, 4))
    operators = st.sampled_from([*OPERATORS])
    relations = [
        {"name": f"r{number}", "lhs": pair[0], "rhs": pair[1], "operator": draw(operators)}
        for number, pair in enumerate(draw(st.sampled_from(pairs)) for _ in range(num_relations))
    ]
    raw = {
        "entities": types,
        "relations": relations,
        "dynamic_relations": dynamic,
        "global_emb": not dynamic and draw(st.booleans()),
        "dimension": 4,
        "comparator": draw(st.sampled_from([*COMPARATORS])),
        "bias": draw(st.booleans()),
        "workers": draw(st.sampled_from((1, 3))),
        "evaluate": {
            "block_bytes": draw(st.sampled_from((1 << 10, 40 * 64 * 4, 1 << 20))),
            "query_bytes": draw(st.sampled_from((500, 1 << 20))),
            "precision": draw(st.sampled_from(("bfloat16", "float32"))),
        },
    }
    return raw, draw(st.integers(0, 2**32 - 1))


def _make(raw: Mapping[str, Any], seed: int, root: Path) -> World:
    config = configuration.from_mapping({**raw, "output": str(root)})
    rng = np.random.default_rng(seed)
    tables = {}
    for name, entity in config.entities.items():
        vectors = rng.integers(-2, 3, (9, config.entity_dimension(name))).astype(np.float32)
        if seed % 2 or config.comparator == "cos":  # only copies tie; products are rounded
            vectors = rng.normal(size=vectors.shape).astype(np.float32)
        for partition in range(entity.num_partitions):
            # Copies: the same vector in several rows and several partitions; above 64, several blocks.
            count = int(rng.choice((0, 1, 5, 30, 70))) if entity.num_partitions > 1 else 30
            tables[name, partition] = vectors[rng.integers(0, len(vectors), count)].reshape(
                -1, vectors.shape[1]
            )
    model = Model(config, NUM_DYNAMIC if config.dynamic_relations else None)
    parameters = {
        key: rng.integers(-2, 3, tuple(value.shape)).astype(np.float32)
        for key, value in model.state_dict().items()
    }
    world = World(config, tables, parameters, {})
    splits: dict[str, list[Edge]] = {"train": [], "test": []}
    for split, num in (("train", 40), ("test", 12)):
        for _ in range(num):
            rel = int(rng.integers(0, NUM_DYNAMIC if config.dynamic_relations else len(config.relations)))
            relation = config.relations[0 if config.dynamic_relations else rel]
            sides = [world.entities(relation.entity_type(side)) for side in Side]
            if not all(sides):
                continue
            # Few distinct lhs: queries with many answers.
            lhs = sides[0][int(rng.integers(0, min(4, len(sides[0]))))]
            splits[split].append((lhs, rel, sides[1][int(rng.integers(0, len(sides[1])))]))
        splits[split] += splits[split][:2]  # duplicates
    splits["test"] += splits["train"][:2]  # edges of both
    world.splits = splits
    return world


EVERYTHING = {
    "entities": {"user": {"num_partitions": 2}, "item": {"num_partitions": 1}},
    "relations": [
        {"name": "likes", "lhs": "user", "rhs": "item", "operator": "linear"},
        {"name": "follows", "lhs": "user", "rhs": "user", "operator": "complex_diagonal"},
    ],
    "dimension": 4,
    "comparator": "dot",
    "evaluate": {"block_bytes": 1 << 10},
}


DYNAMIC = {**EVERYTHING, "relations": EVERYTHING["relations"][:1], "dynamic_relations": True}


@pytest.mark.slow
@settings(
    max_examples=12,
    derandomize=True,  # among random floats there are near misses that float32 cannot tell
)
@given(worlds())
@example((EVERYTHING, 1))
def test_equals_the_oracle(tmp_path: Path, case: tuple[dict[str, Any], int]) -> None:
    raw, seed = case
    root = tmp_path / f"{abs(hash(str(case)))}"
    world = _make(raw, seed, root)
    if not world.splits["test"]:
        return
    _on_disk(world)
    everything = [edge for edges in world.splits.values() for edge in edges]
    expected = _oracle_metrics(world, "test", everything, [], everything + _missing_loops(world))
    ways = [{"filtered": True}, {"filtered": False}, {"leave_out_itself": True}]
    for way, metrics in zip(ways, expected, strict=True):
        config = world.config.with_section(EvaluateConfig(**raw.get("evaluate", {}), **way))
        found = evaluate.evaluate(config)
        assert found["metrics"] == pytest.approx(metrics, rel=1e-9)
        assert found["itself"] == ("left out" if "leave_out_itself" in way else "ranked")


def _small(root: Path) -> World:
    world = _make(EVERYTHING, 14, root)
    assert [len(table) for table in world.tables.values()] == [70, 1, 30]
    _on_disk(world)
    return world


def _with(world: World, **section: Any) -> Config:
    given = world.config.evaluate.model_dump(exclude_unset=True)
    return world.config.with_section(EvaluateConfig(**given | section))


def test_filter_paths_name_the_known_edges(tmp_path: Path) -> None:
    world = _small(tmp_path)
    config = _with(world, filter_paths=[world.config.split_path("train")])
    everything = [edge for edges in world.splits.values() for edge in edges]
    expected, default = _oracle_metrics(world, "test", world.splits["train"], everything)
    assert evaluate.evaluate(config)["metrics"] == pytest.approx(expected)
    assert evaluate.evaluate(world.config)["metrics"] == pytest.approx(default)
    assert expected["mrr"] < default["mrr"]  # the edges of the split itself are known by default


@pytest.mark.parametrize("raw", [EVERYTHING, DYNAMIC], ids=["static", "dynamic"])
def test_a_gpu_ranks_as_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raw: dict[str, Any]) -> None:
    """The reference stands for the kernels where there is no GPU."""
    world = _make(raw, 14, tmp_path)
    _on_disk(world)
    given = {key: value for key, value in raw.items() if key != "evaluate"}
    config = configuration.from_mapping({**given, "output": world.config.output, "num_gpus": 1})
    expected = evaluate.evaluate(world.config)["metrics"]
    here = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shapes = []

    def count_above(query_QD: torch.Tensor, table_ND: torch.Tensor, score_Q: torch.Tensor) -> Any:
        shapes.append((len(query_QD), len(table_ND)))
        return kernels_count(query_QD, table_ND, score_Q)

    monkeypatch.setattr(device, "device_of", lambda num_gpus: here)
    monkeypatch.setattr(ranker, "can_rank", lambda config, device: True)
    kernels_count = device.kernels_of(here).count_above
    monkeypatch.setattr(device.kernels_of(here), "count_above", count_above)
    assert evaluate.evaluate(config)["metrics"] == pytest.approx(expected)
    assert {num_rows for _, num_rows in shapes} == {70, 1, 30}  # whole partitions, not blocks of scores


def test_queries_of_matrices_are_made_in_small_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = _make(DYNAMIC, 14, tmp_path)
    _on_disk(world)
    expected = evaluate.evaluate(world.config)["metrics"]
    sizes = []
    make = Model.query

    def query(model: Model, relation: int, side: Side, vectors: torch.Tensor, rel: Any) -> torch.Tensor:
        sizes.append(len(vectors))
        return make(model, relation, side, vectors, rel)

    monkeypatch.setattr(Model, "query", query)
    monkeypatch.setattr(ranker, "MATRIX_BYTES", 3 * 4 * 4**2)
    assert evaluate.evaluate(world.config)["metrics"] == expected
    assert max(sizes) == 3


def test_a_chosen_version(tmp_path: Path) -> None:
    world = _small(tmp_path)
    expected = evaluate.evaluate(world.config)["metrics"]
    root = world.config.checkpoint_path
    for (entity_type, partition), table in world.tables.items():
        pbg.write_embeddings(root, entity_type, partition, 2, np.ones_like(table), None, {}, ITERATION)
    pbg.write_model(root, 2, {}, {}, {}, ITERATION)
    storage.write_text(storage.join(root, "checkpoint_version.txt"), "2")
    tied = evaluate.evaluate(_with(world, filtered=False))["metrics"]
    assert tied["hits@1"] == 0
    assert tied["mean_rank_pessimistic"] > 2 * tied["mean_rank"] - 2
    assert evaluate.evaluate(_with(world, checkpoint_version=1))["metrics"] == expected


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
    for name, baseline in figures["baselines"].items():
        mean = sum(each[f"mrr_{name}"] * each["num_edges"] for each in by_side)
        assert mean / (2 * figures["metrics"]["num_edges"]) == pytest.approx(baseline["mrr"])
    assert figures["checkpoint_version"] == 1
    assert torch.get_num_threads() == before
    assert job.output_uris(world.config) == []


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
    """Copies score the same at every position in a block of candidates, laid out as the ranking does."""
    generator = torch.Generator().manual_seed(0)
    relation = {"name": "r", "lhs": "user", "rhs": "user", "operator": operator}
    for comparator, num_queries, side in itertools.product(COMPARATORS, (1, 3, 64), Side):
        raw = {
            "output": ".",
            "entities": {"user": {"num_partitions": 1}},
            "relations": [relation],
            "dimension": dimension,
            "comparator": comparator,
        }
        model = Model(configuration.from_mapping(raw))
        for key, initial in model.state_dict().items():
            model.parameters[key] = torch.randn(initial.shape, generator=generator)
        columns_DN = torch.randn(dimension, 128, generator=generator)
        copies = torch.randperm(128, generator=generator)[:40]
        columns_DN[:, copies] = columns_DN[:, :1].clone()
        queries = model.query(0, side, torch.randn(num_queries, dimension, generator=generator))
        scores = model.matrix_scores(queries, model.candidates(0, side, columns_DN.T))[:, copies]
        assert (scores == scores[:, :1]).all()


# ---- PBG's own checkpoints


def _golden(name: str, split_folder: str = "edges") -> Config:
    root = DATA / name
    settings = pbg.read_config(str(root / "checkpoint"))
    settings |= {
        "entity_path": str(root / "entities"),
        "edge_paths": [str(root / split_folder)],
        "checkpoint_path": str(root / "checkpoint"),
        "edge_root": str(root),
        "evaluate": {"split": split_folder},
    }
    return configuration.from_mapping(settings)


def test_pbg_dynamic_checkpoint() -> None:
    config = _golden("pbg_v1_dyn").with_section(EvaluateConfig(split="edges", filtered=False))
    line = (DATA / "pbg_v1_dyn" / "eval.txt").read_text()
    fields = [field.split(":") for field in line.removeprefix("Stats: ").split(",")]
    by_pbg = {name.strip(): float(value) for name, value in fields}
    found = evaluate.evaluate(config)["metrics"]
    names = {"mrr": "mrr", "pos_rank": "mean_rank", "r1": "hits@1", "r10": "hits@10", "r50": "hits@50"}
    for theirs, ours in names.items():
        assert found[f"{ours}_pessimistic"] == pytest.approx(by_pbg[theirs], rel=1e-5, abs=1e-5), theirs
    assert found["num_edges"] == by_pbg["count"]


# ---- bad input


def test_no_checkpoint(tmp_path: Path) -> None:
    config = configuration.from_mapping({**EVERYTHING, "output": str(tmp_path)})
    with pytest.raises(NotFoundError, match="there is no checkpoint to evaluate; train first"):
        evaluate.evaluate(config)


def test_checks_before_an_evaluation(tmp_path: Path) -> None:
    world = _small(tmp_path)
    config = world.config
    implicit = config.model_copy(update={"evaluate": EvaluateConfig()})
    assert job.check(implicit) == ""
    assert job.check(_with(world, enabled=False)) == "evaluate.enabled is false"
    empty = config.split_path("none")
    for bucket in (Bucket(lhs, rhs) for lhs in range(2) for rhs in range(2)):
        nothing = Edges(*(np.zeros(0, np.int64) for _ in range(3)))
        edge_buckets.write_bucket(empty, bucket, nothing)
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


def _write_rows(world: World, rows: Mapping[tuple[str, int], np.ndarray]) -> None:
    for (entity_type, partition), table in rows.items():
        pbg.write_embeddings(
            world.config.checkpoint_path, entity_type, partition, 1, table, None, {}, ITERATION
        )


def _with_nan(world: World) -> dict[tuple[str, int], np.ndarray]:
    table = world.tables["item", 0].copy()
    table[3, 1] = np.nan
    return {("item", 0): table}


def _out_of_range(world: World, lhs: int, rel: int, rhs: int) -> None:
    """30 items: within the range of the users on the same side, but not of this relation."""
    edges = Edges(*(np.array([0, value], np.int64) for value in (lhs, rel, rhs)))
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
        r"embeddings_item_0\.v1\.h5: embeddings have shape \(30, 4\).*; set entity_path and dimension as in",
    ),
    "no number": (
        lambda world: _write_rows(world, _with_nan(world)),
        r"embeddings_item_0\.v1\.h5.*: expected finite numbers",
    ),
    "too large a score": (
        lambda world: _write_rows(
            world, {key: np.full_like(rows, 1e30) for key, rows in world.tables.items()}
        ),
        "an edge's score is not a finite number",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_refused(tmp_path: Path, name: str) -> None:
    world = _small(tmp_path)
    damage, message = DAMAGE[name]
    damage(world)
    with pytest.raises(FormatError, match=message) as found:
        evaluate.evaluate(world.config)
    assert "init_path" not in str(found.value)  # advice for training


def test_a_checkpoint_of_another_model(tmp_path: Path) -> None:
    world = _small(tmp_path)
    pbg.write_config(world.config.checkpoint_path, world.config.pbg() | {"comparator": "cos"})
    with pytest.raises(ConfigError, match=r'trained with other settings: comparator: "cos" -> "dot"'):
        evaluate.evaluate(world.config)
