"""Epochs that PBG preserved as links into the checkpoint survive every change of the checkpoint."""

import shutil
from pathlib import Path

import pytest

from graphmill.checkpoints import pbg as checkpoint
from tests.graphmill.checkpoints.versions import vectors, write_version


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
    assert vectors(root / "epoch_1", 1) == [8, 8]
    assert vectors(root / "epoch_1.stale-1", 1) == [7, 7]
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
