"""The layers of the house, as drawn in docs/architecture.md."""

import subprocess
import sys
from pathlib import Path

from tests import REPOSITORY


def test_imports_keep_to_the_layers() -> None:
    linter = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([linter, "--no-cache"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_only_storage_opens_files() -> None:
    sources = [p for top in ("graphmill", "etl", "train", "remap") for p in (REPOSITORY / top).rglob("*.py")]
    outside = [path for path in sources if "storage" not in path.parts]
    openers = ("pyarrow.fs", "import fsspec", "import hdfs_native", "h5py.File(")
    found = [f"{path.name}: {word}" for path in outside for word in openers if word in path.read_text()]
    assert not found
