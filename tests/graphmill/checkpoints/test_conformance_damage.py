"""Every checkpoint format: refuses files that are cut, missing, damaged or of an unknown version."""

import json
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from graphmill import checkpoints, storage
from graphmill.checkpoints import open_checkpoint, recognise
from graphmill.convert import convert
from graphmill.errors import ConfigError, FormatError, GraphMillError, NotFoundError
from tests.graphmill.checkpoints.samples import WRITERS, MemoryCheckpoint, sample


def _files_of(root: str) -> list[str]:
    return [each.uri for each in storage.list_dir(root, recursive=True) if not each.is_dir]


def _read_all(uri: str) -> None:
    found = open_checkpoint(uri)
    for name, partition, _ in found.partitions():
        found.read_embeddings(name, partition)
        found.read_optimizer_state(name, partition)
    found.read_model()


# Files for other readers alone, and YAML, whose beginning is YAML too.
_FOR_OTHERS = ("torch_rank_weights", "optimizers.bin", "GRAPHSTORM_")


@pytest.mark.slow
@pytest.mark.parametrize("target_format", checkpoints.FORMATS)
def test_a_file_without_its_end_is_refused(root: str, target_format: str) -> None:
    """The message names the file."""
    uri = storage.join(root, "checkpoint")
    WRITERS[target_format](sample(), uri)
    for file_uri in _files_of(uri):
        whole = storage.read_bytes(file_uri)
        if len(whole) < 4 or storage.name(file_uri).startswith(_FOR_OTHERS):
            continue  # a number, cut, is another number
        for length in {0, len(whole) // 2, len(whole) - 3}:
            with storage.atomic_output(file_uri) as stream:
                stream.write(whole[:length])
            with pytest.raises(GraphMillError, match=re.escape(storage.name(file_uri))):
                _read_all(uri)
        with storage.atomic_output(file_uri) as stream:
            stream.write(whole)
    _read_all(uri)


@pytest.mark.parametrize("target_format", checkpoints.FORMATS)
def test_a_missing_file_is_refused(tmp_path: Path, target_format: str) -> None:
    uri = str(tmp_path / "checkpoint")
    WRITERS[target_format](sample(), uri)
    # Legacy files need neither version nor metadata, GraphStorm's no ids; nothing counts the ranks of its
    # models; the others are extras.
    optional = (
        "METADATA",
        "CHECKPOINT_VERSION",
        "embed_nids",
        "config",
        "model.v",
        "checksums",
        "graphmill_",
        "relation2id",
        "sparse_emb",
        *_FOR_OTHERS,
    )
    for file_uri in _files_of(uri):
        if storage.name(file_uri).startswith(optional):
            continue
        whole = storage.read_bytes(file_uri)
        storage.delete(file_uri)
        with pytest.raises(GraphMillError):
            _read_all(uri)
        with storage.atomic_output(file_uri) as stream:
            stream.write(whole)


@pytest.mark.slow
@pytest.mark.parametrize("target_format", checkpoints.FORMATS)
def test_damage_is_floats_or_an_error(tmp_path: Path, target_format: str) -> None:
    """Any wrong byte gives other numbers or a GraphMillError; never another error, and never runs code."""
    uri = str(tmp_path / "checkpoint")
    WRITERS[target_format](sample(), uri)
    rng = np.random.default_rng(0)
    num_refused = 0
    for file_uri in _files_of(uri):
        path = Path(file_uri)
        whole = path.read_bytes()
        for position in rng.integers(0, len(whole), 25):
            damaged = bytearray(whole)
            damaged[position] ^= int(rng.integers(1, 256))
            path.write_bytes(damaged)
            try:
                _read_all(uri)
            except GraphMillError:
                num_refused += 1
        path.write_bytes(whole)
    assert num_refused > 10


@pytest.mark.slow
def test_one_wrong_bit_is_found_by_the_checksum(root: str) -> None:
    """Files of PBG, on local disks and on HDFS, where they are hashed while they are read."""
    uri = storage.join(root, "checkpoint")
    WRITERS["pbg"](sample(), uri)
    rng = np.random.default_rng(0)
    for file_uri in storage.read_checksums(storage.join(uri, "checksums.v7.xxh128")):
        whole = storage.read_bytes(storage.join(uri, file_uri))
        for position in rng.integers(0, len(whole), 4):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << int(rng.integers(8))
            with storage.atomic_output(storage.join(uri, file_uri)) as stream:
                stream.write(bytes(damaged))
            with pytest.raises(FormatError, match=re.escape(file_uri) + ": expected the checksum"):
                _read_all(uri)
        with storage.atomic_output(storage.join(uri, file_uri)) as stream:
            stream.write(whole)
    _read_all(uri)


@pytest.mark.parametrize("target_format", ["pbg", "pbg-legacy"])
@pytest.mark.parametrize("shape", [(8,), (10,), (9, 3), (1, 9), ()])
def test_sums_of_another_shape_than_the_rows_are_refused(
    tmp_path: Path, target_format: str, shape: tuple[int, ...]
) -> None:
    """Convert would write such sums, and training would add to the wrong rows."""
    uri = str(tmp_path / "checkpoint")
    held = sample()
    state = held.tables["user"][0][1]
    assert state is not None
    WRITERS[target_format](held, uri)
    _read_all(uri)
    state["state"][0]["sum"] = torch.ones(shape)
    bad = MemoryCheckpoint(held.tables, None, held.config)
    bad.read_optimizer_state = lambda name, partition: held.tables[name][partition][1]  # type: ignore[method-assign]
    WRITERS[target_format](bad, str(tmp_path / "bad"))
    with pytest.raises(FormatError, match=r"user_0: optimizer state: expected sums of shape \(9,\)"):
        convert(str(tmp_path / "bad"), str(tmp_path / "target"), "recis")
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("target_format", ["pbg", "pbg-legacy", "recis"])
def test_sums_of_another_shape_than_the_parameters_are_refused(tmp_path: Path, target_format: str) -> None:
    held = sample()
    model = held.read_model()
    assert model is not None
    assert model.optimizer_state is not None
    model.optimizer_state["state"][1]["sum"] = torch.ones(3)
    held.read_model = lambda: model  # type: ignore[method-assign]
    WRITERS[target_format](held, str(tmp_path / "bad"))
    with pytest.raises(FormatError, match=r"optimizer state of '\S+': expected sums of shape"):
        convert(str(tmp_path / "bad"), str(tmp_path / "target"), "pbg")


@pytest.mark.parametrize("counts", [[19, -1], [18], [9, 9, 2], ["9", "9"], [9.0, 9.0], 18, None, [True, 17]])
def test_counts_that_differ_from_the_rows_are_refused(tmp_path: Path, counts: Any) -> None:
    """The RecIS layout has the counts beside the table."""
    uri = str(tmp_path / "checkpoint")
    WRITERS["recis"](sample(), uri)
    side = str(tmp_path / "checkpoint" / "graphmill_checkpoint.json")
    before = json.loads(storage.read_bytes(side))["counts"]
    assert before == {"item": [9, 10], "user": [9]}
    _set_json(side, counts=before | {"item": counts})
    with pytest.raises(FormatError, match=r"'item'"):
        _read_all(uri)
    _set_json(side, counts=before | {"other": [3]})
    with pytest.raises(FormatError, match=r"counts of 'other', of which there are no rows"):
        _read_all(uri)


def _set_json(uri: str, **values: Any) -> None:
    storage.write_text(uri, json.dumps(json.loads(storage.read_bytes(uri)) | values))


def test_unknown_versions_are_refused(tmp_path: Path) -> None:
    """The message has the version of the file and the known version."""
    for target_format in checkpoints.FORMATS:
        WRITERS[target_format](sample(), str(tmp_path / target_format))
    with h5py.File(tmp_path / "pbg" / "embeddings_user_0.v7.h5", "a") as hdf5:
        hdf5.attrs["format_version"] = 2
    with pytest.raises(FormatError, match=r"'format_version' is 2; this reader knows 1"):
        _read_all(str(tmp_path / "pbg"))
    _set_json(str(tmp_path / "recis" / "graphmill_checkpoint.json"), format_version=9)
    with pytest.raises(FormatError, match=r"format_version is 9; this reader knows 1"):
        _read_all(str(tmp_path / "recis"))
    _set_json(str(tmp_path / "graphstorm" / "emb_info.json"), format="wholegraph-binary")
    with pytest.raises(FormatError, match=r"expected the format 'pytorch' or 'hdf5', found 'wholegraph-bin"):
        _read_all(str(tmp_path / "graphstorm"))
    torch.save((torch.ones(9, 4), None, 3), tmp_path / "pbg-legacy" / "user_1.pt.7")
    with pytest.raises(FormatError, match=r"user_1\.pt\.7: expected \(embeddings .*found .*int"):
        _read_all(str(tmp_path / "pbg-legacy"))


def test_a_folder_without_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        recognise(str(tmp_path / "nowhere"))
    (tmp_path / "notes.txt").touch()
    with pytest.raises(FormatError, match=r"looked for checkpoint_version\.txt .* found notes\.txt"):
        recognise(str(tmp_path))
    WRITERS["pbg"](sample(), str(tmp_path / "full"))
    with pytest.raises(ConfigError, match="expected a folder that is empty or does not exist"):
        convert(str(tmp_path / "full"), str(tmp_path / "full"), "recis")
