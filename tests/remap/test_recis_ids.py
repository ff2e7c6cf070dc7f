"""Embeddings by raw id from RecIS' tables with hashed ids, in one command."""

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from graphmill.checkpoints.recis import HashTable, Saver, slice_of
from graphmill.config.sections.remap import RemapConfig
from graphmill.errors import ConfigError
from remap import job, sources
from remap.sources import check_maps, load_settings
from tests.remap.graph import read_rows
from tests.remap.saved import Cli, Refused

IDS = np.array([2**62 + 1, -5, 17, 40000, -(2**63)])


def _run(root: Path, ids: np.ndarray = IDS) -> str:
    """The folder of a training run of RecIS."""
    for shard in range(2):
        own = ids[slice_of(shard, 2).owns(ids)]
        rows = (own[:, None] % 10007 + np.arange(3) / 16).astype(np.float32)
        tables = {name: HashTable(own, {"embedding": rows}, shard, 2) for name in ("user", "item", "query")}
        Saver(shard, 2, 2, str(root / "run" / "ckpt_5"), tables).save()
    (root / "run" / "checkpoint").write_text("ckpt_5\n")
    return str(root / "run")


def _map(root: Path) -> str:
    pq.write_table(pa.table({"name": [f"u{n}" for n in range(len(IDS))], "hash": IDS}), root / "user.parquet")
    return str(root / "user.parquet")


def test_hashed_ids_become_raw_ids(tmp_path: Path, cli: Cli, refused: Refused) -> None:
    """An id without a raw id is an error that keeps the old output, or left out, with a word in run.json."""
    checkpoint, out = _run(tmp_path, np.append(IDS, 99)), tmp_path / "out" / "embeddings"
    maps = ["--id-map", f"user={_map(tmp_path)}", "--id-map", "item=int64"]
    call = ["--checkpoint-path", checkpoint, "--output-dir", str(out), *maps]
    lacking = "1 (99) ids of 'user' that its map lacks"
    refused(f"{re.escape(lacking)}: complete the map, or leave", *call)
    assert not out.exists()
    assert cli(*call, "--leave-out") == 0
    vectors = {int(each): [int(each % 10007) + n / 16 for n in range(3)] for each in (*IDS, 99)}
    expected = {("user", f"u{n}"): vectors[int(each)] for n, each in enumerate(IDS)}
    expected |= {("item", str(each)): vector for each, vector in vectors.items()}
    assert read_rows(out) == expected
    assert {each.name for each in out.iterdir()} == {"user", "item", "_checksums.xxh128", "_SUCCESS"}
    assert not [each.name for each in out.parent.iterdir() if "by_raw_id" in each.name]
    stage = json.dumps(json.loads((out.parent / "run.json").read_text())["stages"]["remap"])
    assert lacking in stage
    assert "table 'query': there is no --id-map of it" in stage


def test_without_a_map_the_error_says_what_to_do(tmp_path: Path, refused: Refused) -> None:
    checkpoint = _run(tmp_path)
    trained = ("--checkpoint-path", checkpoint)
    for message, *flags in (
        ("or, for hashed ids of RecIS' tables, --id-map TYPE=FILE", *trained),
        ("they are for a run of ours", "--node-emb-dir", checkpoint, "--id-map", "user=int64"),
        ("has no 'buyer', only item, query, user", *trained, "--id-map", "buyer=int64"),
    ):
        refused(message, *flags)


def test_maps_are_for_recis_and_for_all_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = _run(tmp_path)
    monkeypatch.setattr(sources, "PARTITION_BYTES", 40)  # of 60
    given = {"checkpoint_path": checkpoint, "id_maps": (f"user={_map(tmp_path)}", "item=int64")}
    config = load_settings(None, [], given)
    assert job.input_uris(config) == [checkpoint, _map(tmp_path)]
    check_maps(config, config.remap)
    assert config.num_partitions == {"user": 2, "item": 2}
    fewer = RemapConfig(id_maps={"user": "int64"})
    with pytest.raises(ConfigError, match="there is no map of 'item'"):
        check_maps(config, fewer)
