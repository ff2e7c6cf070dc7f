"""Every checkpoint format, local and on HDFS: round trips, other libraries as readers, `convert`."""

import io
import json
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings

from graphmill import checkpoints, storage
from graphmill.checkpoints import open_checkpoint, recognise
from graphmill.cli.main import command
from graphmill.convert import convert
from graphmill.errors import FormatError
from graphmill.formats import entity_counts
from tests import DATA
from tests.commands import code_of
from tests.contents import contents
from tests.graphmill.checkpoints import samples
from tests.graphmill.checkpoints.samples import sample

# Rows of GraphStorm's models include global embeddings: test_graphstorm_model.py.
FORMATS = [each for each in checkpoints.FORMATS if each != "graphstorm-model"]


@pytest.mark.slow
@pytest.mark.parametrize("target_format", FORMATS)
@settings(max_examples=15)
@given(checkpoint=samples.checkpoints())
def test_write_read_is_identity_for_any_shape(tmp_path_factory, target_format, checkpoint):
    uri = str(tmp_path_factory.mktemp("any") / "checkpoint")
    samples.WRITERS[target_format](checkpoint, uri)
    found = open_checkpoint(uri, allow_non_finite=True)
    samples.check_same(found, samples.held_by(target_format, checkpoint))
    for name, partition, (count, _) in found.partitions():
        batches = list(found.iter_embeddings(name, partition, 2))
        assert all(len(batch) <= 2 for batch in batches)
        assert sum(map(len, batches)) == count


@pytest.mark.slow
def test_same_content_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        time.sleep(1.1 * (name == "b"))  # HDF5 stamps whole seconds where it stamps
        for target_format in FORMATS:
            samples.WRITERS[target_format](sample(), str(tmp_path / name / target_format))
    first, second = (contents(tmp_path / name) for name in ("a", "b"))
    assert first == second


def _read_legacy(uri: str) -> dict[str, Any]:
    def load(name: str) -> Any:
        return torch.load(io.BytesIO(storage.read_bytes(storage.join(uri, name))), weights_only=True)

    rows, state = load("item_2.pt.7")
    config, _, _, model, _ = load("METADATA_1.pt.7")
    assert (config["numBatchNegs"], config["outdir"]) == (50, "checkpoint")
    assert config["relations"][0]["allNegs"] is True
    assert storage.read_bytes(storage.join(uri, "CHECKPOINT_VERSION")) == b"7"
    linear = model["rhs_operators.1.rotation"].T.numpy()
    return {"rows": rows.numpy(), "sum": state["state"][0]["sum"].numpy(), "linear": linear}


def _read_graphstorm(uri: str) -> dict[str, Any]:
    info = json.loads(storage.read_bytes(storage.join(uri, "emb_info.json")))
    assert info["emb_dim"] == {"item": 4, "user": 4}

    def load(stem: str) -> torch.Tensor:
        names = [f"{stem}-{rank:05d}.pt" for rank in range(info["world_size"])]
        pieces = [storage.read_bytes(storage.join(uri, "item", name)) for name in names]
        return torch.cat([torch.load(io.BytesIO(each), weights_only=True) for each in pieces])

    rows = torch.empty(19, 4)
    rows[load("embed_nids")] = load("embed")
    return {"rows": rows[9:].numpy()}


@pytest.mark.parametrize("target_format", FORMATS)
def test_write_read_is_identity(root: str, target_format: str) -> None:
    """Torch finds the second partition of `item`; in other formats: bytes of PBG, and rules of RecIS."""
    uri = storage.join(root, "checkpoint")
    samples.WRITERS[target_format](sample(), uri)
    assert recognise(uri) == target_format
    samples.check_same(open_checkpoint(uri), samples.held_by(target_format, sample()))
    rows, state = sample().tables["item"][1]
    linear = sample().read_model().parameters["rhs_operators.1.linear_transformation"]
    expected = {"rows": rows, "sum": state["state"][0]["sum"].numpy(), "linear": linear.numpy()}
    readers = {"pbg-legacy": _read_legacy, "graphstorm": _read_graphstorm}
    found = readers[target_format](uri) if target_format in readers else {}
    for name, value in found.items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("root", "source_format", "between"),
    [
        *(("local", *each) for each in product(FORMATS, FORMATS) if each[0] != each[1]),
        pytest.param("hdfs", "pbg", "recis", marks=pytest.mark.hdfs),
        pytest.param("hdfs", "graphstorm", "pbg-legacy", marks=pytest.mark.hdfs),
    ],
    indirect=["root"],
)
def test_there_and_back_is_identity(root: str, source_format: str, between: str) -> None:
    """a -> b -> a keeps all content that b can hold; `not_kept` names the rest."""
    first, second, third = (storage.join(root, name) for name in "abc")
    samples.WRITERS[source_format](sample(), first)
    entities = storage.join(root, "entities")
    for name, counts in sample().counts.items():
        for partition, count in enumerate(counts):
            entity_counts.write_count(entities, name, partition, count)
    there = convert(first, second, between)
    back = convert(second, third, source_format, entity_path=entities)
    assert (there.source.format, back.source.format) == (source_format, between)
    if source_format in samples.FULL and between not in samples.FULL:
        assert [each.partition(":")[0] for each in there.not_kept] == [
            "optimizer state of the embeddings",
            "6 parameters of relations",
            "global_embs.emb_item, global_embs.emb_user, which is not added to the rows either",
            "optimizer state of those parameters",
            "configuration",
            "iteration and version",
            "sizes of partitions; --entity-path brings them back",
        ]
    else:
        assert there.not_kept == []
    if source_format in samples.FULL and between in samples.FULL:
        for name in storage.list_dir(first, recursive=True):
            relative = name.uri[len(first) :]
            assert storage.read_bytes(name.uri) == storage.read_bytes(third + relative), relative
    for name, partition, _ in sample().partitions():
        if source_format != "graphstorm":
            rows = back.target.read_embeddings(name, partition)
            np.testing.assert_array_equal(rows, sample().tables[name][partition][0])
    if source_format == "graphstorm":
        samples.check_same(open_checkpoint(third), samples.embeddings_only(sample()))


def _convert(*arguments: str) -> list[str]:
    done = CliRunner().invoke(command, ["convert", *arguments], catch_exceptions=False, standalone_mode=False)
    return done.output.splitlines()


def test_convert_prints_the_source_and_the_lost_content(tmp_path: Path) -> None:
    samples.WRITERS["pbg"](sample(), str(tmp_path / "source"))
    said = _convert(str(tmp_path / "source"), str(tmp_path / "target"), "--format", "graphstorm")
    rows = "item: 19 rows of 4, partitions: 2; user: 9 rows of 4, partitions: 1"
    assert said[0] == f"source  pbg        version 7, {rows}"
    assert said[1].startswith("target  graphstorm item: 19 rows of 4, partitions: 1")
    assert "not kept: optimizer state of the embeddings" in said


def test_convert_refuses_bad_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, format_name in (("source", "pbg"), ("sharded", "recis")):
        samples.WRITERS[format_name](sample(), str(tmp_path / name))
    (tmp_path / "home/.ssh").mkdir(parents=True)
    for arguments, message in (
        (["source", "source", "--format", "recis"], "expected a folder that is empty or does not exist"),
        (["source", "home", "--format", "recis"], "expected a folder that is empty or does not exist"),
        (["nowhere", "target", "--format", "recis"], "expected the folder of a checkpoint, found none"),
        (["source", "target", "--format", "hdf5"], "is not one of"),
        (["source", "target", "--format", "pbg", "--version", "3"], "version 3 has no embeddings"),
        (["sharded", "target", "--format", "pbg", "--version", "3"], "expected version 3, found only 7"),
    ):
        places = [tmp_path / each for each in arguments[:2]]
        assert code_of(command, "convert", *places, *arguments[2:]) == 2
        assert message in capsys.readouterr().err
    assert {each.name for each in tmp_path.iterdir()} == {"source", "sharded", "home"}
    assert (tmp_path / "home/.ssh").is_dir()


@pytest.mark.slow
@pytest.mark.parametrize("golden", ["pbg_v1_static", "pbg_v1_dyn"])
def test_a_round_trip_returns_the_files_of_pbg(tmp_path: Path, golden: str) -> None:
    source = DATA / golden / "checkpoint"
    expected = open_checkpoint(str(source))
    for between in ("pbg-legacy", "recis"):
        there, back = str(tmp_path / between), tmp_path / f"{between}-back"
        shards = ["--shards", "3"] if between == "recis" else []
        _convert(str(source), there, "--format", between, *shards)
        entities = str(DATA / golden / "entities")
        _convert(there, str(back), "--format", "pbg", "--entity-path", entities)
        for path in source.glob("embeddings_*.h5"):
            assert (back / path.name).read_bytes() == path.read_bytes()
        found, wanted = open_checkpoint(str(back)).read_model(), expected.read_model()
        samples.check_equal(vars(found), vars(wanted))
        assert (back / "config.json").read_text() == (source / "config.json").read_text()


def test_convert_orders_the_rows_of_graphstorm_by_id(tmp_path: Path) -> None:
    """GraphStorm saves ids in any order; in PBG, row k is id k."""
    source = DATA / "graphstorm" / "emb"
    _convert(str(source), str(tmp_path / "target"), "--format", "pbg")
    found = open_checkpoint(str(tmp_path / "target"))
    for entity_type, (count,) in found.counts.items():
        parts = [
            torch.cat([torch.load(path) for path in sorted((source / entity_type).glob(f"{stem}-*.pt"))])
            for stem in ("embed_nids", "embed")
        ]
        assert sorted(parts[0].tolist()) == list(range(count))
        np.testing.assert_array_equal(found.read_embeddings(entity_type, 0)[parts[0]], parts[1])


def test_integers_are_no_checkpoint(tmp_path: Path) -> None:
    """GraphStorm saves embeddings of integers too, which float32 cannot hold."""
    (tmp_path / "user").mkdir()
    torch.save(torch.ones(3, 2, dtype=torch.int64), tmp_path / "user/embed-00000.pt")
    (tmp_path / "emb_info.json").write_text('{"emb_name": "user"}')
    with pytest.raises(FormatError, match=r"embed-00000\.pt: expected floats, found int64"):
        open_checkpoint(str(tmp_path))
