"""PBG v1 checkpoints, compared with raw h5py and torch, PBG's own files, kills, hostile bytes, links."""

import io
import multiprocessing
import shutil
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
from tests.graphmill.checkpoints.samples import GROUP, ITERATION, Trap, torch_bytes

CONFIG = {"dimension": 4, "entities": {"user": {"num_partitions": 2}}}
MODEL = {
    "rhs_operators.0.real": torch.arange(6, dtype=torch.float32).reshape(3, 2),
    "lhs_operators.0.imag": torch.ones(3, 2),
    "rhs_operators.11.linear_transformation": torch.eye(4),
    "global_embs.emb_user": torch.arange(4.0),
}


def state_of(sums: torch.Tensor) -> dict[str, Any]:
    return {"state": {0: {"sum": sums}}, "param_groups": [GROUP]}


def write_partition(root: Path | str, version: int, partition: int = 0, fill: float = 0.5) -> None:
    place = str(root), "user", partition, version
    rows = np.full((5, 4), fill, np.float32)
    checkpoint.write_embeddings(*place, rows, state_of(torch.arange(5.0)), CONFIG, ITERATION)


def write_version(root: Path | str, version: int, fill: float | None = None) -> None:
    for partition in range(2):
        write_partition(root, version, partition, version if fill is None else fill)
    checkpoint.write_model(str(root), version, MODEL, {}, CONFIG, ITERATION)


def vectors(root: Path | str, version: int) -> list[float]:
    """The one value that each partition is filled with; the rest of the version is there."""
    assert checkpoint.read_version(str(root)) == version
    assert checkpoint.read_model(str(root), version)[0].keys() == MODEL.keys()
    found = [checkpoint.read_embeddings(str(root), "user", part, version) for part in range(2)]
    assert all((rows == rows[0, 0]).all() and state is not None for rows, state in found)
    return [float(rows[0, 0]) for rows, _ in found]


def check_whole(root: Path | str, version: int) -> None:
    """Assert that a version of its own number is there."""
    assert vectors(root, version) == [version, version]


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


LINK = "expected a dataset 'embeddings' in the file, found a link"
STATE = "optimizer/state_dict"
NOT_STATES = [
    *map(torch_bytes, ({"state": Trap()}, {"state": 5}, {"param_groups": [{"params": 3}]})),
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


# ---- epochs that PBG preserved as links into the checkpoint survive every change of the checkpoint


def preserve_as_pbg(root: Path, version: int, epoch: int, *, relative: bool = False) -> Path:
    """Make links and a version file, like `CheckpointManager.preserve_current_version` of PBG."""
    folder = root / f"epoch_{epoch}"
    folder.mkdir()
    for file in root.glob(f"*.v{version}.h5"):
        (folder / file.name).symlink_to(Path("..", file.name) if relative else file.resolve())
    (folder / "checkpoint_version.txt").write_text(f"{version}\n")
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """PBG's checkpoint of version 4, with epochs 2 and 3 preserved; version 1 is deleted."""
    root = tmp_path / "checkpoint"
    for version in range(1, 5):
        write_version(root, version)
    for version in (2, 3):
        preserve_as_pbg(root, version, version)
    for file in root.glob("*.v1.h5"):
        file.unlink()
    (root / "checkpoint_version.txt").write_text("4\n")
    return root


def check_targets(root: Path, version: int, deleted: int) -> None:
    """Assert that the epochs have their files, and the version its own, and another version none."""
    assert [vectors(root / f"epoch_{epoch}", epoch) for epoch in (2, 3)] == [[2, 2], [3, 3]]
    assert vectors(root, version) == [version, version]
    assert not list(root.glob(f"*.v{deleted}.h5"))


def test_targets_of_epochs_outlive_a_kill_a_commit_and_a_restoring(root: Path) -> None:
    """So does version 0 with initial values of the user; PBG never deletes it."""
    write_version(root, 0)
    write_version(root, 1)
    checkpoint.delete_uncommitted(str(root))
    assert (root / "epoch_2" / "model.v2.h5").is_symlink()  # nothing of theirs is touched
    check_targets(root, 4, deleted=1)
    write_version(root, 5)
    checkpoint.keep(str(root), 4, "best")
    checkpoint.commit(str(root), 5, preserve_epoch=None)
    check_targets(root, 5, deleted=4)
    checkpoint.restore(str(root), "best")
    check_targets(root, 4, deleted=5)
    assert len(list(root.glob("*.v0.h5"))) == 3


def test_a_moved_checkpoint_keeps_the_files_of_its_epochs(root: Path) -> None:
    """Absolute links are broken there; the user needs the files to repair the epochs."""
    for link in (root / "epoch_3").glob("*.h5"):
        link.unlink()
        link.symlink_to(Path("..", link.name))
    moved = root.rename(root.with_name("moved"))
    write_version(moved, 5)
    checkpoint.delete_uncommitted(str(moved))
    write_version(moved, 5)
    checkpoint.commit(str(moved), 5, preserve_epoch=None)
    kept = {file.name for version in (2, 3) for file in moved.glob(f"*.v{version}.h5")}
    assert len(kept) == 6


def test_renamed_epochs_and_epochs_on_another_disk_keep_their_files(root: Path) -> None:
    (root / "epoch_2").rename(root.parent / "elsewhere")
    (root / "epoch_2").symlink_to(root.parent / "elsewhere")
    (root / "good").mkdir()
    renamed = (root / "epoch_3").rename(root / "good/of_may")
    (root / "endless").symlink_to(root)
    checkpoint.delete_uncommitted(str(root))
    assert (vectors(root / "epoch_2", 2), vectors(renamed, 3)) == ([2, 2], [3, 3])


def test_training_a_version_again_does_not_change_its_epoch(root: Path) -> None:
    """A user goes back to version 2 by hand; training writes versions 3 and 4 again."""
    preserve_as_pbg(root, 4, 4)
    (root / "checkpoint_version.txt").write_text("2\n")
    checkpoint.delete_uncommitted(str(root))
    for version in (3, 4):
        write_version(root, version, fill=-version)
        checkpoint.commit(str(root), version, preserve_epoch=None)
    assert [vectors(root / f"epoch_{epoch}", epoch) for epoch in (2, 3, 4)] == [[2, 2], [3, 3], [4, 4]]
    assert vectors(root, 4) == [-4, -4]


@pytest.mark.parametrize("relative", [False, True])
def test_epochs_of_a_checkpoint_moved_aside_are_readable(root: Path, relative: bool) -> None:
    preserve_as_pbg(root, 4, 4, relative=relative)
    checkpoint.keep(str(root), 4, "best")
    aside = Path(checkpoint.move_aside(str(root)))
    assert aside == root.with_name("checkpoint.stale-1")
    assert not root.exists()
    write_version(root, 2, fill=-1)
    write_version(root, 3, fill=-1)
    read = [vectors(aside / f"epoch_{epoch}", epoch) for epoch in (2, 3, 4)]
    assert read == [[2, 2], [3, 3], [4, 4]]
    assert vectors(aside, 4) == vectors(aside / "best", 4) == [4, 4]


def test_each_checkpoint_moved_aside_has_its_own_name(tmp_path: Path) -> None:
    root = tmp_path / "checkpoint"
    for number in (1, 2, 12, 13):
        write_version(root, number)
        (root / "checkpoint_version.txt").write_text(f"{number}\n")
        assert checkpoint.move_aside(f"{root}/") == str(tmp_path / f"checkpoint.stale-{number}")
        if number == 2:  # of two, the user deletes the older one; and the numbers have gone on meanwhile
            shutil.rmtree(tmp_path / "checkpoint.stale-1")
            (tmp_path / "checkpoint.stale-11").touch()
            (tmp_path / "checkpoint.stale-x").touch()
    assert vectors(tmp_path / "checkpoint.stale-2", 2) == [2, 2]


def test_a_preserved_epoch_is_not_replaced_by_an_epoch_of_the_same_number(tmp_path: Path) -> None:
    """An epoch that is preserved again, with other vectors, moves the old epoch aside."""
    root = tmp_path / "checkpoint"
    for fill in (7.0, 7.0, 8.0):
        write_version(root, 1, fill)
        checkpoint.commit(str(root), 1, preserve_epoch=1)
        (root / "checkpoint_version.txt").unlink()
    assert (vectors(root / "epoch_1", 1), vectors(root / "epoch_1.stale-1", 1)) == ([8, 8], [7, 7])
    assert {path.name for path in root.glob("epoch*")} == {"epoch_1", "epoch_1.stale-1"}


def test_a_version_of_links_is_preserved_as_files(root: Path) -> None:
    """A user makes an epoch current again by links to it; a hard link to a link would be a link."""
    for file in root.glob("*.v4.h5"):
        file.unlink()
    (root / "checkpoint_version.txt").write_text("2\n")
    for file in [*root.glob("*.v2.h5")]:
        file.rename(root / "epoch_2" / file.name)
        file.symlink_to(Path("epoch_2", file.name))
    checkpoint.keep(str(root), 2, "best")
    assert vectors(root / "best", 2) == [2, 2]
    checkpoint.delete_uncommitted(str(root))
    assert vectors(root, 2) == [2, 2]
