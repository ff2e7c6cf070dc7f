"""The table of rooms in the page of the architecture: packages, and the first paragraphs of their docstrings.

`python docs/rooms_page.py` writes it.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/explanation/architecture.md"
BEGIN, END = "| room | what it holds |\n| --- | --- |\n", "\n## Where is it?"


def with_rooms(page: str) -> str:
    """The page with the table as the packages are now."""
    before, begin, rest = page.partition(BEGIN)
    return "".join([before, begin, *_rows(), *rest.partition(END)[1:]])


def _rows() -> Iterator[str]:
    for package in ("etl", "train", "remap", "graphmill"):
        for source in sorted((ROOT / package).rglob("__init__.py")):
            docstring = ast.get_docstring(ast.parse(source.read_text())) or ""
            summary = " ".join(docstring.split("\n\n")[0].split())
            yield f"| `{source.parent.relative_to(ROOT)}` | {summary} |\n"


if __name__ == "__main__":
    PAGE.write_text(with_rooms(PAGE.read_text()))
