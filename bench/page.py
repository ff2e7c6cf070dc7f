"""A page of figures: Markdown made from the JSON file of `python -m bench NAMES --json FILE`.

python -m bench.page docs/benchmarks/figures.json > docs/benchmarks/figures.md
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.report import Figure, cell, columns, heading

_INTRODUCTION = """\
# Figures: {names}

`python -m bench NAME --json FILE` measured these figures, and `python -m bench.page FILE` made this page of
them. [The method](method.md) says what each line measures, and the commands. Compare the ratios, which come
from one run on one machine; do not compare figures of different machines.
"""


def markdown(found: dict[str, Any]) -> str:
    """Page of all reports in the JSON file `found`: figures, ratios with goals, notes."""
    reports: list[dict[str, Any]] = list(found["reports"].values())
    introduction = _INTRODUCTION.format(names=", ".join(found["reports"]))
    return "\n".join([introduction, _machine(found), *map(_section, reports)])


def _machine(found: dict[str, Any]) -> str:
    machine = found["machine"]
    memory = f"{machine['memory_bytes'] / 2**30:.0f} GiB"
    libraries = "".join(f", {name} {number}" for name, number in machine.get("versions", {}).items())
    return f"{machine['processor']}, {machine['num_cores']} cores, {memory}{libraries}; {found['started']}.\n"


def _section(report: dict[str, Any]) -> str:
    notes = [f"- {note}" for note in report["notes"]]
    parts = [_table(report["rows"]), _table(report["ratios"]), "\n".join(notes)]
    return "\n\n".join([f"## {report['title']}", *filter(None, parts)]) + "\n"


def _table(rows: Sequence[dict[str, Figure]]) -> str:
    if not rows:
        return ""
    names = columns(rows)
    lines = [[heading(name) for name in names], ["---"] + ["---:"] * (len(names) - 1)]
    lines += [[cell(row, name) for name in names] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    print(markdown(json.loads(Path(sys.argv[1]).read_text())), end="")
