"""Sections -> one HTML file that contains its style, BokehJS and the charts.

The file's content security policy forbids to load anything, and allows only the file's own scripts, by their
hashes. So names and ids of a run cannot run code.
"""

import base64
import hashlib
import logging
from dataclasses import replace
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from graphmill.report.blocks import Chart, Page, has_content

log = logging.getLogger("graphmill")


def render(page: Page) -> str:
    """Make the whole file; equal pages give equal files."""
    page, charts = _with_content(page)
    bokeh_js = _text("bokeh", "server/static/js/bokeh.min.js").replace("</script", "<\\/script")
    scripts = {"library": bokeh_js, "own": _text("graphmill.report", "page.js")}
    embedded = "[" + ",".join(charts) + "]"
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_text("graphmill.report", "page.html")).render(
        page=page,
        style=Markup(_text("graphmill.report", "page.css")),
        scripts={name: Markup(text) for name, text in scripts.items()},
        # `</script>` within a string would end the element.
        charts=Markup(embedded.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")),
        policy=_policy(list(scripts.values())),
    )


def _with_content(page: Page) -> tuple[Page, list[str]]:
    """The page without what has no content, and its charts as JSON."""
    charts, sections = [], []
    for section in page.sections:
        blocks = []
        for block in filter(has_content, section.blocks):
            if isinstance(block, Chart):
                drawn = _drawn(block, f"chart-{section.name}-{block.name}")
                if not drawn:
                    continue
                charts.append(drawn)
            blocks.append(block)
        if blocks:
            sections.append(replace(section, blocks=blocks))
    return replace(page, sections=sections), charts


def _drawn(chart: Chart, target: str) -> str:
    """The chart; nothing if its numbers cannot be drawn: run.json may hold anything."""
    from graphmill.report.charts import to_json  # imports Bokeh, which takes as long as the rest of a report

    try:
        return to_json(chart, target)
    except Exception as error:
        log.warning("report: %s was not drawn: %s: %s", chart.title, type(error).__name__, error)
        return ""


def _policy(scripts: list[str]) -> str:
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    hashes = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:"


def _text(package: str, path: str) -> str:
    return (files(package) / path).read_text(encoding="utf-8")
