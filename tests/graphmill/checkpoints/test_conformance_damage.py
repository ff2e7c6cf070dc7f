"""Every checkpoint format: damage is refused, kills leave one whole, large tables take little memory."""

import json
import multiprocessing
import os
import re
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from graphmill import checkpoints, storage
from graphmill.checkpoints import Checkpoint, ModelState, open_checkpoint, recognise
from graphmill.convert import convert
from graphmill.errors import FormatError, GraphMillError
from tests.forked import die_before
from tests.graphmill.checkpoints.samples import WRITERS, MemoryCheckpoint, check_same, held_by, sample
from tests.pairs import pairs


def _files_of(root: str) -> list[str]:
    return [each.uri for each in storage.list_dir(root, recursive=True) if not each.is_dir]


def _write(uri: str, content: bytes) -> None:
    with storage.atomic_output(uri) as stream:
        stream.write(content)


def _flipped(content: bytes, position: int, bits: int) -> bytes:
    """Change bits of one byte."""
    return content[:position] + bytes([content[position] ^ bits]) + content[position + 1 :]


def _read_all(uri: str) -> None:
    found = open_checkpoint(uri)
    for name, partition, _ in found.partitions():
        found.read_embeddings(name, partition)
        found.read_optimizer_state(name, partition)
    found.read_model()


LOCAL_AND_ON_HDFS = pytest.mark.parametrize(
    ("root", "target_format"),
    [
        *(("local", each) for each in checkpoints.FORMATS),
        *(pytest.param("hdfs", each, marks=pytest.mark.hdfs) for each in checkpoints.FORMATS),
    ],
    indirect=["root"],
)
# Files for other readers alone, and YAML, whose beginning is YAML too.
_FOR_OTHERS = ("torch_rank_weights", "optimizers.bin", "GRAPHSTORM_")
# Legacy files need neither version nor metadata, GraphStorm's no ids; nothing counts the ranks of its models.
_NOT_NEEDED = (
    *_FOR_OTHERS,
    *("METADATA", "CHECKPOINT_VERSION", "embed_nids", "sparse_emb"),
    *("config", "model.v", "checksums", "graphmill_", "relation2id"),
)


@pytest.mark.slow
@LOCAL_AND_ON_HDFS
def test_a_file_that_is_missing_or_without_its_end_is_refused(root: str, target_format: str) -> None:
    uri = storage.join(root, "checkpoint")
    WRITERS[target_format](sample(), uri)
    for file_uri in _files_of(uri):
        whole, name = storage.read_bytes(file_uri), storage.name(file_uri)
        if not name.startswith(_NOT_NEEDED):
            storage.delete(file_uri)
            with pytest.raises(GraphMillError):
                _read_all(uri)
        if len(whole) >= 4 and not name.startswith(_FOR_OTHERS):  # a number, cut, is another number
            for length in {0, len(whole) // 2, len(whole) - 3}:
                _write(file_uri, whole[:length])
                with pytest.raises(GraphMillError, match=re.escape(name)):
                    _read_all(uri)
        _write(file_uri, whole)
    _read_all(uri)


@pytest.mark.slow
@pytest.mark.parametrize("target_format", checkpoints.FORMATS)
def test_damage_is_floats_or_an_error(tmp_path: Path, target_format: str) -> None:
    """Any wrong byte gives other numbers or a GraphMillError; never another error, and never runs code."""
    uri = str(tmp_path / "checkpoint")
    WRITERS[target_format](sample(), uri)
    for manifest in Path(uri).glob("checksums.*"):  # which would refuse every byte
        manifest.unlink()
    rng = np.random.default_rng(0)
    num_refused = 0
    for file_uri in _files_of(uri):
        whole = storage.read_bytes(file_uri)
        for position in rng.integers(0, len(whole), 25):
            _write(file_uri, _flipped(whole, position, int(rng.integers(1, 256))))
            try:
                _read_all(uri)
            except GraphMillError:
                num_refused += 1
        _write(file_uri, whole)
    assert num_refused > 10


def test_one_wrong_bit_is_found_by_the_checksum(root: str) -> None:
    """Files on HDFS are hashed while they are read."""
    uri = storage.join(root, "checkpoint")
    WRITERS["pbg"](sample(), uri)
    rng = np.random.default_rng(0)
    for name in storage.read_checksums(storage.join(uri, "checksums.v7.xxh128")):
        whole = storage.read_bytes(storage.join(uri, name))
        for position in rng.integers(0, len(whole), 4):
            _write(storage.join(uri, name), _flipped(whole, position, 1 << int(rng.integers(8))))
            with pytest.raises(FormatError, match=re.escape(name) + ": expected the checksum"):
                _read_all(uri)
        _write(storage.join(uri, name), whole)
    _read_all(uri)


@pytest.mark.parametrize("target_format", ["pbg", "pbg-legacy"])
@pytest.mark.parametrize("shape", [(8,), (10,), (9, 3), (1, 9), ()], ids=str)
def test_sums_of_another_shape_than_the_rows_are_refused(tmp_path, target_format, shape):
    """Convert would write such sums, and training would add to the wrong rows."""
    uri = str(tmp_path / "checkpoint")
    held = sample()
    state = held.tables["user"][0][1]
    WRITERS[target_format](held, uri)
    _read_all(uri)
    state["state"][0]["sum"] = torch.ones(shape)
    bad = MemoryCheckpoint(held.tables, None, held.config)
    bad.read_optimizer_state = lambda name, partition: held.tables[name][partition][1]
    WRITERS[target_format](bad, str(tmp_path / "bad"))
    with pytest.raises(FormatError, match=r"user_0: optimizer state: expected sums of shape \(9,\)"):
        convert(str(tmp_path / "bad"), str(tmp_path / "target"), "recis")
    assert not (tmp_path / "target").exists()


KEYS = ("rhs_operators.0.diagonal", "lhs_operators.0.diagonals", "global_embs.emb_user")


@pytest.mark.parametrize(
    ("target_format", "shape", "key"), pairs(["pbg", "pbg-legacy", "recis"], [(), (1,), (5,), (3, 4)], KEYS)
)
def test_parameters_of_another_shape_are_refused(tmp_path, target_format, shape, key):
    """One number would be taken for each of a vector, and no score would show it."""
    held, uri = sample(), str(tmp_path / "checkpoint")
    relation = {"name": "likes", "lhs": "user", "rhs": "item", "operator": "diagonal"}
    config = held.config | {"relations": [relation], "dynamic_relations": key != KEYS[0]}
    lead, wanted = ((2,), (-1, 4)) if key.endswith("s") else ((), (4,))  # a row for each relation
    for name, found in (("good", (4,)), ("bad", shape)):
        checkpoint = MemoryCheckpoint(held.tables, None, config)
        model = ModelState({key: torch.ones((*lead, *found))}, None)
        checkpoint.read_model = lambda model=model: model
        WRITERS[target_format](checkpoint, f"{uri}-{name}")
    _read_all(f"{uri}-good")
    told = re.escape(f"parameter {key!r}: expected the shape {wanted}, found {(*lead, *shape)}")
    for read in (Checkpoint.read_model, Checkpoint.read_parameters):
        with pytest.raises(FormatError, match=told):
            read(open_checkpoint(f"{uri}-bad"))


@pytest.mark.parametrize("target_format", ["pbg", "pbg-legacy", "recis"])
def test_sums_of_another_shape_than_the_parameters_are_refused(tmp_path: Path, target_format: str) -> None:
    held = sample()
    model = held.read_model()
    model.optimizer_state["state"][1]["sum"] = torch.ones(3)
    held.read_model = lambda: model
    WRITERS[target_format](held, str(tmp_path / "bad"))
    with pytest.raises(FormatError, match=r"optimizer state of '\S+': expected sums of shape"):
        convert(str(tmp_path / "bad"), str(tmp_path / "target"), "pbg")


COUNTS = {"item": [9, 10], "user": [9]}
STATE = {"state": {"0": {"step": {"tensor": "load", "value": 1}}}, "param_groups": [{}]}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        *(
            ({"counts": COUNTS | {"item": counts}}, "item")
            for counts in ([19, -1], [18], ["9", "9"], [9.0, 9.0], 18, None, [True, 17])
        ),
        ({"counts": COUNTS | {"other": [3]}}, r"counts of 'other', of which there are no rows"),
        ({"table_states": {"user": [5]}}, "table_states: user: 0: "),
        ({"table_states": {"user": [{"state": {}}]}}, "param_groups: Field required"),
        ({"model_state": STATE}, "expected a number and its type, found {'tensor': 'load'"),
        ({"config": {"entities": {"user": 5}}}, "config: expected PyTorch-BigGraph's .* entities: user: "),
        ({"config": {"relations": [{"lhs": "user", "rhs": "user"}]}}, "relations: .*name: Field required"),
        ({"format_version": 9}, r"format_version is 9; this reader knows 1"),
    ],
)
def test_a_damaged_record_beside_a_checkpoint_is_refused(tmp_path: Path, damage: Any, message: str) -> None:
    WRITERS["recis"](sample(), str(tmp_path))
    record = tmp_path / "graphmill_checkpoint.json"
    before = json.loads(record.read_text())
    assert before["counts"] == COUNTS
    record.write_text(json.dumps(before | damage))
    with pytest.raises(FormatError, match=message):
        _read_all(str(tmp_path))


def test_an_unknown_version_is_refused(tmp_path: Path) -> None:
    """Others: test_graphstorm_saved.py, test_pbg_legacy.py."""
    WRITERS["pbg"](sample(), str(tmp_path))
    with h5py.File(tmp_path / "embeddings_user_0.v7.h5", "a") as hdf5:
        hdf5.attrs["format_version"] = 2
    with pytest.raises(FormatError, match=r"'format_version' is 2; this reader knows 1"):
        _read_all(str(tmp_path))


def test_a_state_without_any_content_is_converted(tmp_path: Path) -> None:
    rows = np.ones((2, 2), np.float32)
    WRITERS["pbg"](MemoryCheckpoint({"user": [(rows, {})]}, None, None), str(tmp_path / "pbg"))
    done = convert(str(tmp_path / "pbg"), str(tmp_path / "recis"), "recis")
    assert done.target.read_optimizer_state("user", 0) == {"state": {}, "param_groups": []}


def test_a_folder_without_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(FormatError, match=r"looked for checkpoint_version\.txt .* found notes\.txt"):
        recognise(str(tmp_path))


# A table of 160 MB is converted with 128 MB to spare for what malloc and anonymous mappings take, the stacks
# of a few threads included, on a machine with any number of cores. The client of HDFS ends the process where
# memory is refused: there it is watched.
_BOUNDED = """
import resource, sys
import numpy as np
import pyarrow as pa
import torch
from graphmill import convert
from tests.graphmill.formats.bounded import data_bytes, watched
source, target, *formats = sys.argv[1:]
for set_number in (torch.set_num_threads, pa.set_cpu_count, pa.set_io_thread_count):
    set_number(4)
for each in formats:  # warm up
    convert.convert(source + "_small", f"{target}_{each}_small", each, shard_num=3)
with watched() as most:
    if not target.startswith("hdfs"):
        limit = data_bytes() + (128 << 20)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        try:
            np.ones(40 << 20, np.float32)
        except MemoryError:
            print("bounded", flush=True)
    for each in formats:
        convert.convert(source, f"{target}_{each}", each, shard_num=3)
if target.startswith("hdfs"):
    print("bounded" if 0 < most[0] < 144 << 20 else most)
"""

AROUND = pairwise((*checkpoints.FORMATS, checkpoints.FORMATS[0]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("root", "source_format", "target_formats"),
    [
        *(("local", source, (source, following)) for source, following in AROUND),
        pytest.param("hdfs", "recis", ("pbg", "recis"), marks=pytest.mark.hdfs),
    ],
    indirect=["root"],
)
def test_memory_is_bounded(root, source_format, target_formats, forked):
    """A table larger than the limit is converted from every format to two, and to every format from two."""
    rows = np.arange(40 << 20, dtype=np.float32).reshape(1 << 19, 80)
    state = {"state": {0: {"step": 0, "sum": torch.ones(len(rows))}}, "param_groups": []}
    for name, count in (("source", len(rows)), ("source_small", 8)):
        tables = {"user": [(rows[:count], None if count == 8 else state)]}
        WRITERS[source_format](MemoryCheckpoint(tables, None, None), storage.join(root, name))
    uris = [storage.join(root, name) for name in ("source", "target")]
    assert forked("python", "-c", _BOUNDED, *uris, *target_formats).stdout == "bounded\n"
    for target_format in target_formats:
        with open_checkpoint(storage.join(root, f"target_{target_format}")).open_rows("user", 0) as read:
            np.testing.assert_array_equal(read.read(1000, 2000), rows[1000:2000])


def _die_at(environment: dict[str, str], source: str, target: str, target_format: str, change: int) -> None:
    """Convert, and die before change number `change` of a folder."""
    os.environ.update(environment)
    die_before(change)
    convert(source, target, target_format)


@pytest.mark.slow
@LOCAL_AND_ON_HDFS
def test_a_kill_leaves_all_or_nothing(root: str, target_format: str) -> None:
    """SIGKILL before each rename and deletion leaves no target or a whole target; the next run succeeds."""
    # A process that has spoken to HDFS cannot be forked; one that has only imported can.
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([__name__])
    source, targets = storage.join(root, "source"), storage.join(root, "targets")
    WRITERS["pbg"](sample(), source)
    num_killed = 0
    step = 1 if storage.is_local(root) else 6 if target_format == "recis" else 3  # three kills each on HDFS
    for change in range(0, 100, step):
        target = storage.join(targets, str(change))
        child = server.Process(target=_die_at, args=(dict(os.environ), source, target, target_format, change))
        child.start()
        child.join()
        if not storage.list_dir(target):
            convert(source, target, target_format)
        written = open_checkpoint(target)
        if not written.has_added_globals:  # test_graphstorm_model compares such rows
            check_same(written, held_by(target_format, sample()))
        if child.exitcode == 0:
            break
        assert child.exitcode == -signal.SIGKILL
        num_killed += 1
        storage.recover(target)
    assert child.exitcode == 0
    assert num_killed >= 3
    assert not storage.fs.list_hidden(targets)
