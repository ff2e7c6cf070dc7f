"""Relations with the names that knowledge graphs have: paths, URLs, anything."""

import json
from pathlib import Path
from typing import Any

import distributed
import numpy as np
import pyarrow.parquet as pq
import pytest

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
from graphmill.run import record
from remap import job as remap
from tests.commands import Command
from train import job as train

NAMES = (
    "/people/person/nationality",
    "http://www.wikidata.org/prop/direct/P31",
    "..",
    ".hidden: [a]",
    "../../up",
    "x" * 400,
    "a.b%2Fc, 'd'",
)


def settings(tmp_path: Path, dynamic: bool) -> Config:
    table = {"path": str(tmp_path / "graph.tsv"), "header": False, "lhs": 0, "relation_column": 1, "rhs": 2}
    relations = [{"name": name, "lhs": "e", "rhs": "e", "operator": "diagonal"} for name in NAMES]
    raw = {
        "output": str(tmp_path / "run"),
        "entities": {"e": {"num_partitions": 1}},
        "relations": [{**relations[0], "name": "/all/of:them"}] if dynamic else relations,
        "dynamic_relations": dynamic,
        "dimension": 4,
        "comparator": "dot",
        "global_emb": False,
        "num_epochs": 1,
        "etl": {"tables": [table], "holdout": {"test": 0.2}, "graphstorm_maps": True},
        "train": {"save_embed_path": str(tmp_path / "emb")},
        "remap": {"relations": True},
    }
    (tmp_path / "conf.yaml").write_text(json.dumps(raw))
    return configuration.load(str(tmp_path / "conf.yaml"))


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_any_name_goes_everywhere(
    tmp_path: Path, near_client: distributed.Client, cli: Command, dynamic: bool
) -> None:
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


@pytest.mark.parametrize("name", ["a/b", "a.b", "a:b", ".", "..", "", " a", "a\nb", "ä" * 101])
def test_names_of_types_are_names_of_files(name: str) -> None:
    raw: dict[str, Any] = {
        "output": "x",
        "dimension": 2,
        "entities": {name: {"num_partitions": 1}},
        "relations": [{"name": "r", "lhs": name, "rhs": name}],
    }
    with pytest.raises(ConfigError, match="entities"):
        configuration.from_mapping(raw)
