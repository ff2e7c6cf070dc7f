"""A new built-in operator is one entry; relations have the names that knowledge graphs have."""

import json
import math
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from distributed import Client

from etl import job as etl
from graphmill import config as configuration
from graphmill import report
from graphmill.ask.evaluate import evaluate
from graphmill.ask.neighbors import along_relation
from graphmill.ask.predict import job as answers
from graphmill.ask.predict.settings import PredictOptions
from graphmill.checkpoints import open_checkpoint
from graphmill.config import Config
from graphmill.convert import convert
from graphmill.errors import ConfigError
from graphmill.library.run import Run
from graphmill.model import losses
from graphmill.model.built_in import OPERATORS, Array, Operator, Parameter, library, split
from graphmill.run import record
from remap import job as remap
from tests.commands import Command
from tests.finished import of_triples
from tests.graphmill.model import test_operators
from train import job as train
from train.model import regularizers

NAME, DIMENSION = "rotate3d", 15


def turned(x: Array, angle: Array, axis: Array) -> Array:
    """Rotation in space by Rodrigues' formula, of x and axis in three parts (doi:10.1145/3340531.3411889)."""
    points, axes = split(x, 3), split(axis, 3)
    length = library(x).sqrt(sum(each * each for each in axes))
    axes = tuple(each / length for each in axes)
    along = sum(each * point for each, point in zip(axes, points, strict=True))
    cos, sin = library(x).cos(angle), library(x).sin(angle)

    def part(at: int) -> Any:
        one, other = (at + 1) % 3, (at + 2) % 3
        across = axes[one] * points[other] - axes[other] * points[one]
        return points[at] * cos + across * sin + axes[at] * along * (1 - cos)

    found: Array = library(x).concatenate([part(at) for at in range(3)], -1)
    return found


ROTATE3D = Operator(
    "points in space, which turn around an axis",
    (
        Parameter("angle", "angles", lambda d: (d // 3,), is_angle=True),
        Parameter("axis", "axes", lambda d: (d,), identity=1.0, random=lambda normal: normal),
    ),
    turned,
    lambda slope, angle, axis: turned(slope, -angle, axis),
    parts=3,
    has_length=False,
)


@pytest.fixture(autouse=True)
def rotate3d(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPERATORS, NAME, ROTATE3D)


@pytest.mark.slow
def test_every_command_knows_it(tmp_path: Path, triples: Path, graphmill_command: Command) -> None:
    run = tmp_path / "run"
    operator, training = f"relations.0.operator={NAME}", ("regularization_coef=.01", "lr=.3", "num_epochs=5")
    options = of_triples(triples, run, operator, f"dimension={DIMENSION}", *training)
    assert graphmill_command("pipeline", *options) == 0
    record = json.loads((run / "run.json").read_text())["stages"]
    assert f"cannot train operator '{NAME}'" in record["train"]["plan"]["reasons"][0]  # no kernel knows it
    assert record["evaluate"]["metrics"]["mrr"] > 0.1  # by chance .02

    assert graphmill_command("export", run, "--format", "faiss", "--to", tmp_path / "faiss") == 0
    index = faiss.read_index(str(tmp_path / "faiss/entity/vectors.faiss"))
    assert (index.ntotal, index.d) == (300, DIMENSION)
    model = json.loads((tmp_path / "faiss/_model.json").read_text())
    assert model["operators"] == {NAME: ROTATE3D.words}

    assert graphmill_command("predict", run, "--relation", "r1", "--k", "3", "--to", tmp_path / "best") == 0
    new = tmp_path / "new.txt"
    new.write_text("new\tr0\tn001\nnew\tr1\tn008\n")
    assert graphmill_command("fold-in", run, "--edges", new, "--to", tmp_path / "folded") == 0

    wrong = of_triples(triples, tmp_path / "wrong", operator, "dimension=16")
    assert graphmill_command("pipeline", *wrong) == 2


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_formula_holds_to_what_all_do(dynamic: bool, rng: np.random.Generator) -> None:
    vectors = rng.standard_normal((5, test_operators.DIMENSION), np.float32)
    test_operators.test_numpy_torch_and_autograd_agree(NAME, dynamic, vectors)
    test_operators.test_the_identity_changes_nothing(NAME, 3 if dynamic else None, vectors)


def test_n3_takes_the_lengths_of_points() -> None:
    operator = regularizers.BuiltIn(NAME, 6)
    vectors = torch.arange(6.0)[None] + 1  # two points: 1 3 5 and 2 4 6
    lengths = torch.tensor([[math.sqrt(35), math.sqrt(56)]])
    torch.testing.assert_close(operator.prepare_embs_for_reg(vectors), lengths)
    assert operator.get_operator_params_for_reg() is None  # angles and directions have no length
    cost, _ = losses.n3(split(vectors, 3), 2.0)
    torch.testing.assert_close(cost, 2 * (lengths**3).sum(1))


NAMES = (
    *("/people/person/nationality", "http://www.wikidata.org/prop/direct/P31", "..", ".hidden: [a]"),
    *("../../up", "x" * 400, "a.b%2Fc, 'd'"),
)


def settings(tmp_path: Path, dynamic: bool) -> Config:
    table = {"path": str(tmp_path / "graph.tsv"), "header": False, "lhs": 0, "relation_column": 1, "rhs": 2}
    relations = [{"name": name, "lhs": "e", "rhs": "e", "operator": "diagonal"} for name in NAMES]
    raw = {
        "output": str(tmp_path / "run"),
        "entities": {"e": {"num_partitions": 1}},
        "relations": [{**relations[0], "name": "/all/of:them"}] if dynamic else relations,
        "dynamic_relations": dynamic,
        **{"dimension": 4, "comparator": "dot", "global_emb": False, "num_epochs": 1},
        "etl": {"tables": [table], "holdout": {"test": 0.2}, "graphstorm_maps": True},
        "train": {"save_embed_path": str(tmp_path / "emb")},
        "remap": {"relations": True},
    }
    (tmp_path / "conf.yaml").write_text(json.dumps(raw))
    return configuration.load(str(tmp_path / "conf.yaml"))


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_any_name_goes_everywhere(tmp_path: Path, near_client: Client, cli: Command, dynamic: bool) -> None:
    rng = np.random.default_rng(0)
    edges = [
        (f"/m/0{a}", NAMES[a % len(NAMES)], f"/m/0{b}") for a, b in rng.integers(0, 30, (300, 2)).tolist()
    ]
    (tmp_path / "graph.tsv").write_text("".join("\t".join(edge) + "\n" for edge in edges))
    config = settings(tmp_path, dynamic)
    run = record.RunRecord(f"{config.output}/run.json", config)
    for name, job in (("etl", etl), ("train", train), ("remap", remap)):
        record.run_stage(name, job, config, near_client, run, resume=False)
    figures = evaluate.evaluate(config)
    assert {each["relation"] for each in figures["metrics_by_relation"]} == set(NAMES)

    table = pq.read_table(f"{config.embedding_path}/_relations.parquet")
    assert set(table["relation"].to_pylist()) == set(NAMES)
    for name in NAMES:
        _, found = along_relation(config, config.embedding_path, "/m/07", 3, name, False)
        assert len(found) == 3
    question = PredictOptions(relation=NAMES[0], k=2, exclude_known=True)
    answers.run(config, question, str(tmp_path / "answers"), near_client)
    assert set(pq.read_table(tmp_path / "answers")["relation"].to_pylist()) == {NAMES[0]}

    for kind in ("recis", "graphstorm", "pbg-legacy", "pbg"):
        convert(config.checkpoint_path, str(tmp_path / kind), kind, entity_path=config.entity_path)
        assert open_checkpoint(str(tmp_path / kind)).format == kind
    # what the trainer saves for GraphStorm's tools is remapped as by ourselves
    maps = f"{config.entity_path}/raw_id_mappings"
    assert cli("--node-id-mapping", maps, "--node-emb-dir", tmp_path / "emb") == 0
    ours, theirs = (
        dict(zip(*pq.read_table(folder, columns=columns).to_pydict().values(), strict=True))
        for folder, columns in (
            (f"{config.embedding_path}/e", ["id", "embedding"]),
            (tmp_path / "emb/e", ["nid", "emb"]),
        )
    )
    assert ours == theirs
    assert len(ours) == 30
    page = Path(report.write(Run(config.output))).read_text()
    assert "prop/direct/P31" in page
    assert {path.name for path in tmp_path.iterdir()} == {
        *("graph.tsv", "conf.yaml", "run", "answers", "emb", "recis", "graphstorm", "pbg-legacy", "pbg")
    }


def test_names_of_types_are_names_of_files() -> None:
    for name in ("a/b", "a.b", "a:b", ".", "..", "", " a", "a\nb", "ä" * 101):
        raw: dict[str, Any] = {
            "output": "x",
            "dimension": 2,
            "entities": {name: {"num_partitions": 1}},
            "relations": [{"name": "r", "lhs": name, "rhs": name}],
        }
        with pytest.raises(ConfigError, match="entities"):
            configuration.from_mapping(raw)
