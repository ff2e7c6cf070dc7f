"""Sections -> one HTML file that needs nothing else: its style, BokehJS and the charts are inside.

The file may not load anything, nor run any script but its own three, whatever a run's names and ids hold:
its content security policy names these by their hashes.
"""

import base64
import hashlib
import logging
from functools import cache
from importlib.resources import files

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from graphmill.report.blocks import Chart, Page
from graphmill.report.charts import to_json

log = logging.getLogger("graphmill")


def render(page: Page) -> str:
    """The whole file; the same for the same page."""
    charts = [
        _drawn(block, f"chart-{section.name}-{block.name}")
        for section in page.sections
        for block in section.blocks
        if isinstance(block, Chart)
    ]
    scripts = {"library": _bokeh_js(), "own": _own("page.js")}
    embedded = "[" + ",".join(filter(None, charts)) + "]"
    return _template().render(
        page=page,
        style=Markup(_own("page.css")),
        scripts={name: Markup(text) for name, text in scripts.items()},
        # `</script>` within a string would end the element.
        charts=Markup(embedded.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")),
        policy=_policy(list(scripts.values())),
    )


def _drawn(chart: Chart, target: str) -> str:
    """The chart, or nothing where its numbers are none: run.json may come from anywhere."""
    try:
        return to_json(chart, target)
    except Exception as error:
        log.warning("report: %s was not drawn: %s: %s", chart.title, type(error).__name__, error)
        return ""


@cache
def _template() -> Template:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_own("page.html"))


def _policy(scripts: list[str]) -> str:
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:"


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@cache
def _bokeh_js() -> str:
    script = files("bokeh") / "server" / "static" / "js" / "bokeh.min.js"
    return script.read_text(encoding="utf-8").replace("</script", "<\\/script")


@cache
def _own(name: str) -> str:
    return (files("graphmill.report") / name).read_text(encoding="utf-8")
