"""Sections -> one HTML file that contains its style, BokehJS and the charts.

The file's content security policy forbids to load anything, and allows only the file's own scripts, by their
hashes. So names and ids of a run cannot run code.
"""

import base64
import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from graphmill.display.readable import number
from graphmill.report.charts import Chart, to_json
from graphmill.run.reading import Level

log = logging.getLogger("graphmill")


class PageTile(NamedTuple):
    """One figure, large; `note` below it."""

    label: str
    value: Any
    note: str = ""


class Tiles(NamedTuple):
    """Figures side by side."""

    tiles: Sequence[PageTile]


@dataclass(frozen=True)
class PageTable:
    """Rows of text and numbers; columns after the first `num_text_columns` are aligned on the right."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    num_text_columns: int = 1
    note: str = field(kw_only=True)
    """Says below the table what is good there, and what is bad."""
    best: Mapping[int, int] = field(default_factory=dict, kw_only=True)
    """The highlighted column of a row."""
    folded: bool = field(default=False, kw_only=True)


class Note(NamedTuple):
    """A sentence; `level` is its colour."""

    text: str
    level: Level = "plain"
    preformatted: str = ""


Block = Tiles | PageTable | Note | Chart


class PageSection(NamedTuple):
    """A part of the page with a place in its menu."""

    name: str
    title: str
    blocks: Sequence[Block]


class Page(NamedTuple):
    """A whole report."""

    title: str
    subtitle: str
    status: str
    sections: Sequence[PageSection]


def render(page: Page) -> str:
    """Make the whole file, without what has no content; equal pages give equal files."""
    sections, charts = [], list[str]()
    for section in page.sections:
        if blocks := [block for block in section.blocks if _has_content(block, section.name, charts)]:
            sections.append(section._replace(blocks=blocks))
    bokeh_js = _text("bokeh", "server/static/js/bokeh.min.js").replace("</script", "<\\/script")
    scripts = {"library": bokeh_js, "own": _text("graphmill.report", "page.js")}
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts.values()]
    hashes = " ".join(f"'sha256-{digest}'" for digest in digests)
    drawn = f"[{','.join(charts)}]"  # `</script>` within a string would end the element
    drawn = drawn.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["number"] = number
    return environment.from_string(_text("graphmill.report", "page.html")).render(
        page=page._replace(sections=sections),
        style=Markup(_text("graphmill.report", "page.css")),
        scripts={name: Markup(text) for name, text in scripts.items()},
        charts=Markup(drawn),
        policy=f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:",
    )


def _has_content(block: Block, section: str, charts: list[str]) -> bool:
    """Tell whether there is something to show; adds the JSON of a chart whose numbers can be drawn."""
    match block:
        case Tiles():
            return bool(block.tiles)
        case PageTable():
            return bool(block.rows)
        case Chart():
            try:
                charts.append(to_json(block.plot, f"chart-{section}-{block.name}"))
            except ValueError as error:  # infinite or not a number: run.json may hold anything
                log.warning("report: %s was not drawn: %s", block.title, error)
                return False
    return True


def _text(package: str, path: str) -> str:
    return (files(package) / path).read_text(encoding="utf-8")
