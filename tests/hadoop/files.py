"""Folders of files, on HDFS or here."""

from pathlib import Path

from graphmill import storage


def files_at(uri: str) -> dict[str, bytes]:
    """Relative path -> content of all files, hidden ones too."""
    found = [each.uri for each in storage.list_dir(uri, recursive=True, hidden=True) if not each.is_dir]
    return {each.removeprefix(f"{uri}/"): storage.read_bytes(each) for each in found}


def upload(folder: Path, uri: str) -> None:
    """Copy all files of a folder."""
    for path in folder.rglob("*"):
        if path.is_file():
            storage.copy_file(str(path), f"{uri}/{path.relative_to(folder)}")
