"""The report of a benchmark: rows of figures, and ratios with goals."""

import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from graphmill.cluster import num_cores

LIBRARIES = ("dask", "numpy", "pyarrow", "torch")
Figure = str | float | int | None


@dataclass
class Report:
    """The report of one benchmark; rows may have different columns."""

    name: str
    title: str
    rows: list[dict[str, Figure]] = field(default_factory=list)
    ratios: list[dict[str, Figure]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failed: str | None = None  # the reason, if the benchmark failed

    def add(self, what: str, **figures: Figure) -> None:
        """Add a row of figures."""
        self.rows.append({"what": what, **figures})

    def ratio(self, what: str, value: float, goal: str = "") -> None:
        """Add a ratio and its goal."""
        self.ratios.append({"ratio": what, "value": value, "goal": goal})

    def show(self, console: Console) -> None:
        """Print the tables."""
        console.print(_table(self.rows, self.title))
        if self.ratios:
            console.print(_table(self.ratios, None))
        for note in self.notes:
            console.print(note, highlight=False, markup=False)
        if self.failed is not None:
            console.print(f"failed: {self.failed}", style="red", highlight=False, markup=False)
        console.print()

    def as_json(self) -> dict[str, Any]:
        """The report for the JSON file."""
        content = {"title": self.title, "rows": self.rows, "ratios": self.ratios, "notes": self.notes}
        return content if self.failed is None else content | {"failed": self.failed}


def machine() -> dict[str, Any]:
    """Describe the machine."""
    cpuinfo = Path("/proc/cpuinfo")
    models = re.findall("^model name.*: (.*)", cpuinfo.read_text() if cpuinfo.exists() else "", re.MULTILINE)
    return {
        "processor": models[0] if models else platform.processor(),
        "num_cores": num_cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "versions": {name: version(name) for name in LIBRARIES},
    }


def columns(rows: Sequence[Mapping[str, Figure]]) -> list[str]:
    """Names of the columns of all rows, in the order in which they first occur."""
    return list(dict.fromkeys(name for row in rows for name in row))


def heading(name: str) -> str:
    """Head of a column."""
    return name.removesuffix("_bytes").replace("_", " ")


def cell(row: Mapping[str, Figure], name: str) -> str:
    """Text of a figure, as short as its column's unit allows."""
    value = row.get(name)
    if value is None:
        return ""
    if name.endswith("_bytes"):
        return f"{float(value) / 2**20:,.0f} MiB"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}" if abs(value) < 1 else f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) else value


def _table(rows: list[dict[str, Figure]], title: str | None) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    names = columns(rows)
    for number, name in enumerate(names):
        table.add_column(heading(name), justify="right" if number else "left", no_wrap=not number)
    for row in rows:
        table.add_row(*(cell(row, name) for name in names))
    return table
