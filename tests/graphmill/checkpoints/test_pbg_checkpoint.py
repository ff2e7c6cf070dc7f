"""PBG v1 checkpoints, compared with raw h5py and torch, PBG's own files, kills and hostile bytes."""

import io
import multiprocessing
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from graphmill.checkpoints import pbg as checkpoint
from graphmill.errors import FormatError, NotFoundError
from graphmill.formats import hdf5 as hdf5_files
from tests import DATA
from tests.forked import die_before
from tests.graphmill.checkpoints.samples import ITERATION, Trap
from tests.graphmill.checkpoints.versions import CONFIG, check_whole, state_of, write_partition, write_version


def _names(root: str) -> set[str]:
    return {entry.name for entry in Path(root).iterdir()}


def test_a_view_of_a_bigger_table_is_written_alone(tmp_path: Path) -> None:
    rows = np.arange(20, dtype=np.float32).reshape(5, 4)
    state = state_of(torch.arange(100_000, dtype=torch.float32)[:5])
    checkpoint.write_embeddings(str(tmp_path), "user", 0, 1, rows, state, CONFIG, ITERATION)
    path = tmp_path / "embeddings_user_0.v1.h5"
    assert path.stat().st_size < 20_000
    with checkpoint.open_embeddings(str(tmp_path), "user", 0, 1) as stored:
        np.testing.assert_array_equal(stored.read(3, 9), rows[3:])
    with h5py.File(path) as hdf5:
        stream = io.BytesIO(hdf5["optimizer/state_dict"][...].tobytes())
    assert torch.equal(torch.load(stream, weights_only=True)["state"][0]["sum"], torch.arange(5.0))


def test_a_parameter_without_a_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no place for a parameter named 'bias'"):
        checkpoint.write_model(str(tmp_path), 1, {"bias": torch.ones(1)}, {}, CONFIG, ITERATION)
    assert not list(tmp_path.iterdir())


def test_float64_is_accepted(tmp_path: Path) -> None:
    rows = np.arange(6.0).reshape(3, 2)
    with h5py.File(tmp_path / "embeddings_user_0.v1.h5", "w") as hdf5:
        hdf5.attrs["format_version"] = 1
        hdf5["embeddings"] = rows
    read, state = checkpoint.read_embeddings(str(tmp_path), "user", 0, 1)
    np.testing.assert_array_equal(read, rows)
    assert read.dtype == np.float32
    assert state is None


def tree(path: Path) -> dict[str, Any]:
    """Nodes of an HDF5 file with their types and attributes."""
    found: dict[str, Any] = {}

    def visit(name: str, node: h5py.Group | h5py.Dataset) -> None:
        leaf = isinstance(node, h5py.Dataset)
        opaque = leaf and node.dtype == np.dtype("V1")
        shape = (node.dtype, None if opaque else node.shape) if leaf else "group"
        found[name] = (shape, dict(node.attrs))

    with h5py.File(path) as hdf5:
        hdf5.visititems(visit)
        kinds = {name: h5py.h5a.open(hdf5.id, name.encode()).dtype for name in hdf5.attrs}
        return {**found, "/": (dict(hdf5.attrs), kinds)}


@pytest.mark.parametrize(
    ("folder", "version", "counts", "num_parameters"),
    [("pbg_v1_dyn", 3, [135], 4), ("pbg_v1_static", 2, [68, 67], 8)],
)
def test_files_of_pbg_are_read_and_written_alike(tmp_path, folder, version, counts, num_parameters):
    golden = DATA / folder / "checkpoint"
    root, config = str(golden), checkpoint.read_config(str(golden))
    assert (checkpoint.read_version(root), config["dimension"]) == (version, 8)
    model, optimizer, iteration = checkpoint.read_model(root, version)
    assert len(optimizer["state"]) == len(model) == num_parameters
    assert (iteration.num_epochs, iteration.edge_path) == (version, "edges")
    assert {line["epoch_idx"] for line in checkpoint.read_stats(root)} == set(range(version))
    checkpoint.write_model(str(tmp_path), version, model, optimizer, config, iteration)
    for partition, count in enumerate(counts):
        rows, state = checkpoint.read_embeddings(root, "concept", partition, version)
        assert rows.shape == (count, 8)
        assert np.isfinite(rows).all()
        assert state["state"][0]["sum"].shape == (count,)
        place = str(tmp_path), "concept", partition, version
        checkpoint.write_embeddings(*place, rows, state, config, iteration)
    for path in tmp_path.iterdir():
        assert tree(path) == tree(golden / path.name)


@pytest.mark.parametrize("text", ["", "\n", "three", "-1", "1.5", "9" * 30])
def test_broken_version_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "checkpoint_version.txt").write_text(text)
    with pytest.raises(FormatError, match=r"checkpoint_version\.txt: expected the number of a version"):
        checkpoint.read_version(str(tmp_path))


def test_missing_files(tmp_path: Path) -> None:
    assert checkpoint.read_version(str(tmp_path)) == 0
    with pytest.raises(NotFoundError, match=r"embeddings_user_0\.v1\.h5"):
        checkpoint.read_embeddings(str(tmp_path), "user", 0, 1)
    with pytest.raises(NotFoundError, match=r"model\.v1\.h5"):
        checkpoint.read_model(str(tmp_path), 1)
    with pytest.raises(NotFoundError, match=r"config\.json"):
        checkpoint.read_config(str(tmp_path))


def _saved(content: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()


LINK = "expected a dataset 'embeddings' in the file, found a link"
STATE = "optimizer/state_dict"
NOT_STATES = [
    *map(_saved, ({"state": Trap()}, {"state": 5}, {"param_groups": [{"params": 3}]})),
    *(b"", b"not a pickle", b"\x80\x02N.", bytes(100)),
]


# Files that no reader of HDF5 takes: tests/graphmill/formats/test_edge_buckets.py.
@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("embeddings", h5py.ExternalLink("other.h5", "/secret"), LINK),
        ("embeddings", np.ones((2, 2), np.int64), "dataset 'embeddings'"),
        ("embeddings", np.ones(4, np.float32), "dataset 'embeddings'"),
        *((STATE, content, f"dataset '{STATE}': expected") for content in NOT_STATES),
    ],
    ids=lambda each: type(each).__name__,
)
def test_damaged_embeddings(tmp_path: Path, monkeypatch: Any, name: str, data: Any, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    with h5py.File(tmp_path / "other.h5", "w") as hdf5:
        hdf5["secret"] = np.ones((2, 2), np.float32)
    write_partition(tmp_path, 1)
    with h5py.File(tmp_path / "embeddings_user_0.v1.h5", "a") as hdf5:
        del hdf5[name]
        hdf5[name] = np.frombuffer(data, np.dtype("V1")) if isinstance(data, bytes) else data
    with pytest.raises(FormatError, match=rf"embeddings_user_0\.v1\.h5: {message}"):
        checkpoint.read_embeddings(str(tmp_path), "user", 0, 1)
    assert "sprung" not in _names(str(tmp_path))


def test_config_and_stats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(tmp_path)
    checkpoint.write_config(root, CONFIG)
    assert checkpoint.read_config(root) == CONFIG

    def line(chunk: int, lhs: int, loss: float) -> dict[str, Any]:
        visit = {"epoch_idx": 0, "edge_path_idx": 0, "edge_chunk_idx": chunk}
        return {"lhs_partition": lhs, "rhs_partition": 0, **visit, "stats": {"loss": loss}}

    assert checkpoint.read_stats(root) == []
    checkpoint.append_stats(root, [line(0, 0, 1.0), line(0, 1, 2.0)])
    monkeypatch.setattr("graphmill.storage.fs.MAX_TEXT_BYTES", 10)  # which a long training passes
    checkpoint.append_stats(root, [line(1, 0, 3.0)])
    # The iteration of chunk 1 was not committed; done again, it tells its story again.
    checkpoint.append_stats(root, [line(1, 0, 4.0), line(1, 1, 5.0)])
    assert [each["stats"]["loss"] for each in checkpoint.read_stats(root)] == [1, 2, 4, 5]
    assert len((tmp_path / "training_stats.json").read_text().splitlines()) == 4

    others = '{"epoch_idx":0,  "of":"another writer"}\n{"no": "iteration"}\n'
    (tmp_path / "training_stats.json").write_text(others)
    checkpoint.append_stats(root, [line(1, 0, 4.0)])
    assert (tmp_path / "training_stats.json").read_text().startswith(others), "as they are: not parsed again"

    (tmp_path / "training_stats.json").write_text('{"a": 1}\n{"b":')
    with pytest.raises(FormatError, match=r"training_stats\.json: line 2: expected a JSON object"):
        checkpoint.read_stats(root)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(FormatError, match=r"config\.json: expected a JSON object, found list"):
        checkpoint.read_config(root)
    (tmp_path / "config.json").write_text('{"relations": [7]}')
    with pytest.raises(FormatError, match=r"config\.json: expected PyTorch-BigGraph's configuration; rel"):
        checkpoint.read_config(root)
    os.truncate(tmp_path / "config.json", 1 << 40)  # a file that takes no room on the disk
    with pytest.raises(FormatError, match=r"config\.json: expected at most 268,435,456 bytes of text"):
        checkpoint.read_config(root)


def test_a_commit_deletes_older_versions_and_keeps_preserved_epochs(tmp_path: Path) -> None:
    root = str(tmp_path)
    checkpoint.write_config(root, CONFIG)
    for version, epoch in ((1, 0), (2, None), (3, 2)):
        write_version(root, version)
        checkpoint.commit(root, version, preserve_epoch=epoch)
        check_whole(root, version)
    files = {"embeddings_user_0.v3.h5", "embeddings_user_1.v3.h5", "model.v3.h5"}
    assert _names(root) == {"checkpoint_version.txt", "config.json", "epoch_0", "epoch_2", *files}
    check_whole(checkpoint.epoch_path(root, 0), 1)
    check_whole(checkpoint.epoch_path(root, 2), 3)
    assert checkpoint.read_config(str(tmp_path / "epoch_0")) == CONFIG
    write_partition(root, 4)
    with pytest.raises(FormatError, match="version 4 cannot be committed: it lacks embeddings_user_1, model"):
        checkpoint.commit(root, 4, preserve_epoch=None)
    check_whole(root, 3)


def test_deletes_only_what_a_kill_leaves(tmp_path: Path) -> None:
    root = str(tmp_path)
    for version in (1, 2, 3, 20):
        write_version(root, version)
    (tmp_path / "checkpoint_version.txt").write_text("2\n")
    (tmp_path / ".model.v3.h5.tmp-0123456789ab").touch()
    (tmp_path / "notes.txt").touch()
    checkpoint.delete_uncommitted(root)
    stems = ("embeddings_user_0", "embeddings_user_1", "model")
    kept = {f"{stem}.v{version}.h5" for stem in stems for version in (2, 20)}
    assert _names(root) == kept | {"checkpoint_version.txt", "notes.txt"}
    check_whole(root, 2)


def _die_at(root: str, change: int) -> None:
    """Write and commit version 2, and be killed right before the given change of the folder."""
    die_before(change)
    write_version(root, 2)
    checkpoint.append_stats(root, [{"epoch_idx": 1}])
    checkpoint.commit(root, 2, preserve_epoch=1)


@pytest.mark.slow
def test_kill_at_every_point_leaves_one_version_whole(tmp_path: Path) -> None:
    """SIGKILL before each rename and deletion: version 1 or 2 is whole, and the next run ends right."""
    # A process with threads, those of Dask for one, cannot be forked; one that has only imported can.
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([__name__])
    seen: list[int] = []
    for change in range(100):
        root = str(tmp_path / str(change))
        write_version(root, 1)
        checkpoint.commit(root, 1, preserve_epoch=None)
        child = server.Process(target=_die_at, args=(root, change))
        child.start()
        child.join()
        version = checkpoint.read_version(root)
        seen.append(version)
        check_whole(root, version)
        checkpoint.delete_uncommitted(root)
        check_whole(root, version)
        assert not any(".v" in name and f".v{version}." not in name for name in _names(root))
        if version == 2:
            check_whole(checkpoint.epoch_path(root, 1), 2)
        write_version(root, 2)
        checkpoint.commit(root, 2, preserve_epoch=1)
        check_whole(root, 2)
        check_whole(checkpoint.epoch_path(root, 1), 2)
        if child.exitcode == 0:
            break
        assert child.exitcode == -signal.SIGKILL
    assert child.exitcode == 0
    assert sorted(seen) == seen
    assert seen.count(1) >= 6  # four files, the stats, the epoch, the version
    assert seen.count(2) >= 4  # three deletions, and the run that nothing killed


def test_other_files_are_read_while_a_large_one_is_written(tmp_path, monkeypatch):
    """h5py has one lock for all files: a writer that kept it would hold up whoever reads edges."""
    monkeypatch.setattr(hdf5_files, "PIECE_BYTES", 1 << 10)
    small = tmp_path / "small.h5"
    with h5py.File(small, "w") as hdf5:
        hdf5["x"] = np.arange(3)
    reads = []

    def read(seconds: float) -> None:
        with ThreadPoolExecutor(1) as pool, h5py.File(small) as hdf5:
            reads.append(pool.submit(lambda: hdf5["x"][:].tolist()).result(60))

    monkeypatch.setattr(hdf5_files.time, "sleep", read)
    rows = np.arange(8000, dtype=np.float32).reshape(-1, 8)
    state = {"state": {0: {"sum": torch.arange(1000.0)}}}
    checkpoint.write_embeddings(str(tmp_path / "pieces"), "node", 0, 1, rows, state, CONFIG, ITERATION)
    assert len(reads) >= 32 + 4
    assert reads[0] == [0, 1, 2]
    monkeypatch.undo()
    checkpoint.write_embeddings(str(tmp_path / "whole"), "node", 0, 1, rows, state, CONFIG, ITERATION)
    name = "embeddings_node_0.v1.h5"
    assert (tmp_path / "pieces" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
