"""All files of a folder, to tell whether a test's subject has changed any."""

from pathlib import Path

from graphmill import storage


def contents(folder: str | Path) -> dict[str, bytes]:
    """Every file under a local folder, by its path from there, hidden ones included."""
    root = Path(storage.local_path(str(folder)))
    return {
        str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()
    }
