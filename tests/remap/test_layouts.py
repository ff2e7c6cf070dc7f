"""Custom layouts of the output, and output from checkpoints of other formats, by maps of hashed ids too."""

import csv
import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st

from graphmill import config as configuration
from graphmill import convert
from graphmill.checkpoints.recis import HashTable, Saver, slice_of
from graphmill.config import Config
from graphmill.config.sections.remap import RemapConfig
from graphmill.errors import ConfigError, FormatError
from graphmill.formats.parquet import bounds
from remap import job, sources, tables
from remap.sources import check_maps, load_settings
from tests.contents import contents
from tests.remap import graph
from tests.remap.graph import read_rows
from tests.remap.saved import Cli, Refused


def files(config: Config) -> list[str]:
    return sorted(name for name in contents(config.embedding_path) if not name.startswith("_"))


def test_lists_other_names_and_cut_files(near_client: Client, output: str) -> None:
    names = {"id": "nid", "embedding": "emb"}
    config = graph.configured(output, vectors="list", column_names=names, rows_per_file=3, batch_rows=2)
    figures = job.run(config, near_client)
    assert files(config) == [
        "item/part-00000_00000.parquet",
        *(f"user/part-00000_{number:05d}.parquet" for number in range(2)),
        *(f"user/part-00002_{number:05d}.parquet" for number in range(3)),
    ]
    assert (figures["num_rows"], figures["num_files"]) == (15, 6)
    found = {}
    for name in files(config):
        table = pq.read_table(Path(config.embedding_path, name))
        assert table.schema.names == ["nid", "type", "emb"]
        assert table.schema.field("emb").type == pa.list_(pa.field("element", pa.float32()))
        assert len(table) <= 3
        for row in table.to_pylist():
            found[row["type"], row["nid"]] = row["emb"]
    assert found == graph.expected_rows()
    job.run(config, near_client)  # replaces its own


def test_csv(near_client: Client, output: str) -> None:
    config = graph.configured(output, output_format="csv", output_delimiter="\t")
    job.run(config, near_client)
    found = {}
    for name in files(config):
        with Path(config.embedding_path, name).open(newline="") as stream:
            for row in csv.DictReader(stream, delimiter="\t"):
                found[row["type"], row["id"]] = [float(text) for text in row["embedding"].split(";")]
    assert found == graph.expected_rows()


def test_csv_is_counted_whatever_its_bytes_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "CSV_BLOCK_BYTES", 1 << 10)
    uri, options = str(tmp_path / "table.csv"), tables.TableOptions(output_format="csv")
    ids = [*map(str, range(500)), "2020-01-01", "a\nb", 'say ""', *map("é{}".format, range(500))]
    scores = np.repeat(np.array([1, 0.5], np.float32), [500, 503])
    schema = pa.schema([("nid", pa.string()), ("pred", pa.float32())])
    with tables.open_table(uri, schema, options) as table:
        table.append([pa.array(ids), scores])
    with tables.open_table(f"{uri}.small", schema, options) as table:
        table.append([pa.array([""]), np.float32([0.1])])
    assert Path(f"{uri}.small").read_text() == 'nid,pred\n"",0.10000000149011612\n'  # as a double
    for _ in range(50):  # pyarrow reads ahead: two readers of one stream disagreed one time in ten
        assert tables.count_rows(uri, options) == 1003
    (tmp_path / "latin.csv").write_bytes("nid,pred\nMünchen,1\nKöln,2\n".encode("latin-1"))
    assert tables.count_rows(str(tmp_path / "latin.csv"), options) == 2
    (tmp_path / "empty.csv").touch()
    with pytest.raises(pa.ArrowInvalid, match="Empty CSV file"):
        tables.count_rows(str(tmp_path / "empty.csv"), options)


@pytest.mark.slow
def test_some_ids_alone(near_client: Client, output: str, tmp_path: Path, monkeypatch) -> None:
    """Workers of a running cluster outlive a run: each run has the ids that are there."""
    wanted = [graph.raw_id("user", 2, 5), graph.raw_id("item", 0, 1), "nobody", graph.raw_id("user", 0, 0)]
    for name, columns in (("ids", {"who": wanted}), ("named", {"name": ["x"] * 4, "id": wanted})):
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    for name, text in (("lines.txt", "\n".join(wanted)), ("other.csv", wanted[0]), ("none.txt", "nobody")):
        (tmp_path / name).write_text(text)
    pq.write_table(pa.table({"n": range(4)}), tmp_path / "numbers.parquet")

    def run(name: str) -> Any:
        config = graph.configured(output, ids_path=str(tmp_path / name), batch_rows=2)
        assert config.remap.ids_path in job.input_uris(config)
        return job.run(config, near_client)["num_rows"]

    assert [run(name) for name in ("named.parquet", "lines.txt", "ids.parquet", "other.csv")] == [3, 3, 3, 1]
    (tmp_path / "other.csv").write_text("\n".join(wanted[:2]))
    assert [run("other.csv"), run("ids.parquet")] == [2, 3]
    expected = {key: row for key, row in graph.expected_rows().items() if key[1] in wanted}
    with pytest.raises(ConfigError, match=r"none\.txt: expected ids of the run, found none"):
        run("none.txt")
    with pytest.raises(FormatError, match="expected a column of strings"):
        run("numbers.parquet")
    monkeypatch.setattr(bounds, "WHOLE_BYTES", 1)
    with pytest.raises(FormatError, match="share strings that are too long"):
        run("named.parquet")
    assert graph.read_rows(graph.configured(output).embedding_path) == expected  # the old tables stay


@given(sizes=st.lists(st.integers(1, 9), max_size=8), rows_per_file=st.integers(1, 10))
def test_any_batches_into_files_of_one_size(sizes: list[int], rows_per_file: int) -> None:
    total = sum(sizes)
    ids, vectors_ND = pa.array(map(str, range(total)), pa.string()), np.arange(total)[:, None]
    ends = np.cumsum([0, *sizes])
    batches = ((ids[a:b], vectors_ND[a:b]) for a, b in itertools.pairwise(ends))
    cut = [list(each) for each in job.split_into_files(batches, rows_per_file)]
    lengths = [sum(len(ids) for ids, _ in each) for each in cut]
    assert lengths == [min(rows_per_file, total - start) for start in range(0, total, rows_per_file)]
    assert [text for each in cut for ids, _ in each for text in ids.to_pylist()] == ids.to_pylist()
    assert [value for each in cut for _, rows in each for value in rows[:, 0]] == list(range(total))


def test_relations_beside(near_client: Client, output: str) -> None:
    values = [1.0, 2.0, 3.0, 4.0]
    graph.write_checkpoint(output, version=2, state={"rhs_operators.0.diagonal": torch.tensor(values)})
    raw = graph.configured(output, relations=True).model_dump()
    relation = {"lhs": "user", "rhs": "item", "operator": "diagonal"}
    config = configuration.from_mapping(raw | {"relations": [{"name": "likes"} | relation]})
    assert job.run(config, near_client)["num_relation_parameters"] == 1
    (row,) = pq.read_table(Path(config.embedding_path, "_relations.parquet")).to_pylist()
    found = {"relation": "likes", "side": "rhs", "parameter": "diagonal", "shape": [4], "values": values}
    assert row == relation | found
    assert graph.read_rows(config.embedding_path) == graph.expected_rows(version=2)


def test_relations_that_the_configuration_does_not_have(output: str, refused: Refused, cli: Cli) -> None:
    """A checkpoint without a configuration: which relation a parameter belongs to is not known."""
    graph.write_checkpoint(output, version=2, state={"rhs_operators.1.diagonal": torch.ones(4)})
    message = "the configuration has no operator of a relation 1"
    refused(message, *graph.flags(output), "--set", "remap.relations=true")
    assert not Path(output, "embeddings").exists()
    relations = [{"name": name, "lhs": "user", "rhs": "item", "operator": "diagonal"} for name in "ab"]
    Path(output, "checkpoint/config.json").write_text(json.dumps({"relations": relations, "dimension": 4}))
    assert cli(*graph.flags(output), "--output-dir", f"{output}/out", "--set", "remap.relations=true") == 0
    assert pq.read_table(f"{output}/out/_relations.parquet")["relation"].to_pylist() == ["b"]


def test_no_setting_of_a_foreign_checkpoint_is_taken(output: str, cli: Cli, tmp_path: Path) -> None:
    """Its config.json may name any place, and any cluster."""
    config_json = Path(output, "checkpoint/config.json")
    hostile = {
        "remap": {"ids_path": str(tmp_path / "no such file")},
        "embedding_path": str(tmp_path / "chosen by the file"),
        "cluster": {"master": "tcp://nowhere:1"},
        "init_path": "hdfs://nowhere:1/x",
    }
    config_json.write_text(json.dumps(hostile))
    assert cli(*graph.flags(output), "--output-dir", tmp_path / "out/embeddings") == 0
    assert graph.read_rows(tmp_path / "out/embeddings") == graph.expected_rows()
    recorded = json.loads((tmp_path / "out/run.json").read_text())["config"]
    assert (recorded["remap"], recorded["cluster"], recorded["init_path"]) == ({}, {}, None)


def test_a_checkpoint_alone_leaves_the_configuration_of_its_run(output: str, cli: Cli) -> None:
    """Dates and notebooks read it from run.json; the checkpoint knows a part of it only."""
    places = {"output": output, "checkpoint_path": f"{output}/checkpoint"}
    config = {"seed": 5, "schedule": {"previous_date": "2026-11-19"}} | places
    before = {"status": "done", "config": config}
    Path(output, "run.json").write_text(json.dumps(before | {"stages": {"etl": {"status": "done"}}}))
    assert cli(*graph.flags(output)) == 0
    after = json.loads(Path(output, "run.json").read_text())
    assert after["config"] == before["config"]
    statuses = {name: entry["status"] for name, entry in after["stages"].items()}
    assert statuses == {"etl": "done", "remap": "done"}


def test_rank_0_does_the_work_of_all(output: str, cli: Cli) -> None:
    flags = graph.flags(output)
    before = contents(output)
    assert cli(*flags, "--rank", 1, "--world-size", 2) == 0
    assert cli(*flags, "--rank", 2, "--world-size", 2) == ConfigError.exit_code
    assert contents(output) == before
    assert cli(*flags, "--rank", 0, "--world-size", 2) == 0
    assert graph.read_rows(f"{output}/checkpoint/embeddings") == graph.expected_rows()


@pytest.mark.slow
def test_a_checkpoint_without_a_run_has_embeddings_of_its_own(output: str, cli: Cli) -> None:
    """Two models below one folder, as in PBG's examples, do not replace each other's vectors."""
    Path(output, "checkpoint").rename(Path(output, "A"))
    graph.write_checkpoint(output, version=2)
    Path(output, "checkpoint").rename(Path(output, "B"))
    for name in ("A", "B"):
        assert cli("--checkpoint-path", f"{output}/{name}", "--entity-path", f"{output}/entities") == 0
    for version, name in enumerate(("A", "B"), start=1):
        assert graph.read_rows(f"{output}/{name}/embeddings") == graph.expected_rows(version=version)
    assert not Path(output, "run.json").exists()


def test_flags_over_a_configuration_are_of_one_call(output: str, cli: Cli, tmp_path: Path) -> None:
    """A command without them, later, writes what the configuration of the run asks for."""
    Path(output, "conf.yaml").write_text(json.dumps(graph.configured(output).model_dump(mode="json")))
    assert cli("--conf", f"{output}/conf.yaml") == 0
    before = json.loads(Path(output, "run.json").read_text())["config"]
    target = tmp_path / "ü 🦆=1 %20" / "out"  # flags hold any text
    flags = ["--output-chunk-size", 4, "--column-names", "id,🦆: é", "--output-dir", target]
    assert cli(output, *flags) == 0
    table = pq.read_table(target / "user/part-00000_00001.parquet")
    assert (table.schema.names, len(table)) == (["🦆: é", "type", "embedding"], 1)
    assert json.loads(Path(output, "run.json").read_text())["config"] == before
    assert cli(output) == 0
    assert graph.read_rows(f"{output}/embeddings") == graph.expected_rows()


def test_flags_that_do_not_go_together(output: str, refused: Refused) -> None:
    checkpoint, entities = graph.flags(output)[:2], graph.flags(output)[2:]
    for flags, message in (
        ([], "--conf: missing"),
        (checkpoint, "--entity-path: missing"),
        ([*checkpoint, *entities, "--preserve-input", "true"], "only together with --node-emb-dir"),
        ([*checkpoint, "--node-emb-dir", "emb"], "cannot be used with GraphStorm's flags"),
        (["--node-emb-dir", "emb", "--dry-run"], r"--dry-run, --set \(but of cluster\)"),
        ([*checkpoint, *entities, "--column-names", "id,type"], "expected three different names"),
        ([*checkpoint, *entities, "--column-names", "embedding,"], "expected three different names"),
    ):
        refused(message, *flags)


def test_a_converted_checkpoint_that_knows_no_relations(output, cli, tmp_path, refused):
    """Checkpoints converted from GraphStorm have no relations."""
    saved, target, entities = str(tmp_path / "emb"), str(tmp_path / "target"), f"{output}/entities"
    convert.convert(f"{output}/checkpoint", saved, "graphstorm")
    convert.convert(saved, target, "pbg", entity_path=entities)
    assert cli("--checkpoint-path", target, "--entity-path", entities) == 0
    assert graph.read_rows(f"{target}/embeddings") == graph.expected_rows()
    flags = ["--checkpoint-path", saved, "--entity-path", entities, "--set", "remap.checkpoint_version=3"]
    refused("of the format graphstorm: it has one version", *flags)


@pytest.mark.slow
@pytest.mark.parametrize("target_format", ["pbg", "pbg-legacy", "recis", "graphstorm"])
def test_what_convert_writes_is_remapped(near_client, output, tmp_path, target_format):
    """The type's global embedding is added where the format has a place for it."""
    state = {"global_embs.emb_user": torch.tensor([1.0, -2.0, 0.5, 0.0])}
    graph.write_checkpoint(output, version=2, state=state)
    config = graph.configured(output)
    target = str(tmp_path / "converted")
    convert.convert(config.checkpoint_path, target, target_format, entity_path=config.entity_path)
    other = configuration.from_mapping(config.model_dump() | {"checkpoint_path": target})
    assert job.run(other, near_client)["num_rows"] == 15
    found = graph.read_rows(config.embedding_path)
    has_global = target_format != "graphstorm"
    for (entity_type, raw_id), vector in found.items():
        bare = np.array(graph.expected_rows(version=2)[entity_type, raw_id], np.float32)
        added = state["global_embs.emb_user"].numpy() if entity_type == "user" and has_global else 0
        np.testing.assert_array_equal(np.array(vector, np.float32), bare + added)


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
