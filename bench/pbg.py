"""PyTorch-BigGraph from PyPI, in the virtual environment that the interop tests make: `.venv-pbg`."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from bench import measure

REPOSITORY = Path(__file__).resolve().parents[1]
# By default, glibc returns freed memory and faults it in again at every batch.
TUNED = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "MALLOC_TOP_PAD_": "268435456",
}


@cache
def python() -> Path:
    """The interpreter of the environment; the first call creates the environment, unless it exists."""
    from tests.interop.pbg import install  # needs pytest, which runs without PBG do not need

    return install()


def write_config(path: Path, settings: Mapping[str, Any]) -> Path:
    """Write a configuration file of PBG; `settings` are plain JSON types."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"import json\n\ndef get_torchbiggraph_config():\n    return json.loads({json.dumps(settings)!r})\n"
    )
    return path


def import_tsv(config_path: Path, tsv_path: Path, *, buffered: bool) -> measure.Measured:
    """Run PBG's importer on a tab-separated file (lhs, rel, rhs); `buffered`: see pbg_buffered_import.py."""
    columns = ["--lhs-col", "0", "--rel-col", "1", "--rhs-col", "2"]
    module = ["-m", "torchbiggraph.converters.import_from_tsv"]
    program = [Path(__file__).with_name("pbg_buffered_import.py")] if buffered else module
    return measure.run([python(), *program, *columns, config_path, tsv_path], environment=_plain())


def train(config_path: Path, *, tuned: bool) -> measure.Measured:
    """Run PBG's trainer, with the default allocator settings or with the best ones (`tuned`)."""
    environment = _plain() | (TUNED if tuned else {})
    command: list[str | Path] = [python(), "-m", "torchbiggraph.train", config_path]
    return measure.run(command, environment=environment)


def _plain() -> dict[str, str]:
    return {"PYTHONPATH": "", "PYTHONWARNINGS": "ignore", "PYTHONUNBUFFERED": "1"}
