"""Files of a folder: all, to tell whether a test's subject has changed any, and damaged ones."""

from pathlib import Path

from graphmill import storage


def contents(folder: str | Path) -> dict[str, bytes]:
    """Every file under a local folder, by its path from there, hidden ones included."""
    root = Path(storage.local_path(str(folder)))
    return {
        str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()
    }


def flip_a_bit(path: Path) -> None:
    """Damage a file in its middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
