"""Numbers -> charts of Bokeh, as JSON that the page's own copy of BokehJS draws.

The page sets the colours of axes and grids, because they depend on its light or dark mode. The colours here
are readable in both modes.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Literal, NamedTuple

import numpy as np
from bokeh.embed import json_item
from bokeh.models import (
    ColorBar,
    ColumnDataSource,
    FixedTicker,
    HoverTool,
    LinearColorMapper,
    NumeralTickFormatter,
    Range1d,
)
from bokeh.palettes import Viridis256
from bokeh.plotting import figure

from graphmill.display.readable import shortened

# Of Okabe and Ito (jfly.uni-koeln.de/color), without those that one of the modes hides: people who do not see
# red, green or blue tell them apart. A second round of the colours has other markers and dashed lines.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
MARKERS = ("circle", "triangle", "square")
DASHES = ("solid", "dashed", "dotted")
REST = "#6b7280"
HEIGHT = 280
LABEL_CHARS = 22
SHORT = "0.[000]a"  # 0.25, 12.5k, 3m

_ID = re.compile(r'"(id|root_id)":"(p\d+)"')
_MATHS = re.compile(r"\$(?=\$)|\\(?=[(\[])")

Scale = Literal["linear", "log"]


@dataclass(frozen=True)
class Chart:
    """A figure of Bokeh; `note` below it says what is good there, and what is bad."""

    name: str
    title: str
    plot: Any
    note: str
    is_square: bool = False


class Series(NamedTuple):
    """Named points of one colour; the chart shows a point's label when the mouse is over the point."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    style: Literal["line", "thin", "points", "both"] = "both"
    labels: Sequence[str] = ()
    is_rest: bool = False
    """Everything that has no colour of its own: grey."""


def curves(
    name: str,
    title: str,
    x_label: str,
    y_label: str,
    series: Sequence[Series],
    *,
    note: str,
    scale: Scale = "linear",
    from_zero: bool = False,
    whole_x: bool = False,
    is_square: bool = False,
) -> Iterator[Chart]:
    """Chart the series over a common axis, if they have a number.

    `whole_x` asks for whole numbers only along x, such as epochs. A square chart is a map: as high as wide,
    with equal units, without ticks.
    """
    if not any(_is_number(y) for points in series for y in points.y):
        return
    plot = _figure(name, HEIGHT, x_label, y_label, scale, scale)
    for number, points in enumerate(series):
        _add_series(plot, points, number, [(x_label, "@x"), (y_label, "@y")], is_square)
    if is_square:
        plot.sizing_mode, plot.aspect_ratio, plot.match_aspect = "scale_width", 1, True
        plot.xaxis.major_label_text_font_size = plot.yaxis.major_label_text_font_size = "0px"
        plot.axis.major_tick_in = plot.axis.major_tick_out = 0
        plot.grid.visible = False
    else:
        plot.axis.formatter = NumeralTickFormatter(format=SHORT)
    if whole_x:
        plot.xaxis.ticker.min_interval = 1
    if from_zero:
        plot.y_range.start = 0
    _place_legend(plot, len(series))
    yield Chart(name, title, plot, note, is_square)


def _add_series(plot: Any, series: Series, number: int, tips: list[tuple[str, str]], is_square: bool) -> None:
    turn = number // len(COLOURS) % len(MARKERS)
    columns: dict[str, list[Any]] = {"x": list(series.x), "y": list(series.y)}
    if series.labels:
        columns["label"] = [_plain(label) for label in series.labels]
        tips = [("", "@label")]
    look: dict[str, Any] = {
        "source": ColumnDataSource(columns),
        "color": REST if series.is_rest else COLOURS[number % len(COLOURS)],
        "legend_label": _plain(shortened(series.name)),
    }
    if series.style != "points":
        width, alpha = (1, 0.55) if series.style == "thin" else (2, 1)
        drawn = plot.line("x", "y", line_width=width, line_dash=DASHES[turn], alpha=alpha, **look)
    if series.style in ("points", "both"):
        size, alpha = (5 + turn, 0.75) if is_square else (7, 1)
        drawn = plot.scatter("x", "y", size=size, marker=MARKERS[turn], alpha=alpha, **look)
    plot.add_tools(HoverTool(renderers=[drawn], tooltips=tips, attachment="below"))


def bars(
    name: str,
    title: str,
    value_label: str,
    labels: Sequence[str],
    groups: Mapping[str, Sequence[float]],
    *,
    note: str,
    scale: Scale = "linear",
) -> Iterator[Chart]:
    """Chart a bar for each label and group, if there is a number; horizontal, because labels are long."""
    if not any(_is_number(value) for values in groups.values() for value in values):
        return
    count = len(labels)
    height = 74 + count * (12 + 12 * len(groups))
    plot = _figure(name, height, value_label, None, scale, "linear")
    plot.y_range = Range1d(count - 0.5, -0.5)
    thickness = 0.8 / len(groups)
    least = min((v for values in groups.values() for v in values if v > 0), default=1)
    left = least / 2 if scale == "log" else 0  # a log axis has no zero
    for position, (colour, (group, values)) in enumerate(zip(cycle(COLOURS), groups.items(), strict=False)):
        offset = (position - (len(groups) - 1) / 2) * thickness
        source = ColumnDataSource(
            {
                "y": [row + offset for row in range(count)],
                "value": [max(value, left) for value in values],
                "shown": [f"{value:,.6g}" for value in values],
                "label": [_plain(shortened(label, 100)) for label in labels],
            }
        )
        legend = {"legend_label": _plain(group)} if len(groups) > 1 else {}
        look = {"height": thickness * 0.9, "color": colour, **legend}
        drawn = plot.hbar("y", right="value", left=left, source=source, **look)
        tips = [("", "@label"), (_plain(group), "@shown")]
        plot.add_tools(HoverTool(renderers=[drawn], tooltips=tips, attachment="below"))
    _set_ticks(plot.yaxis, {row: _plain(shortened(label, LABEL_CHARS)) for row, label in enumerate(labels)})
    plot.ygrid.visible = False
    plot.xaxis.formatter = NumeralTickFormatter(format=SHORT)
    _place_legend(plot, len(groups))
    yield Chart(name, title, plot, note)


def heat_map(
    name: str,
    title: str,
    labels: tuple[str, str, str],
    counts: Sequence[Sequence[float]],
    step: int,
    note: str,
) -> Iterator[Chart]:
    """Chart counts of cells [row][column] of `step` x `step`; labels of x, y and of the counts."""
    cells = np.asarray(counts, np.float64)
    rows, columns = cells.shape
    plot = _figure(name, min(420, 130 + 34 * rows), *labels[:2], "linear", "linear")
    plot.x_range = Range1d(0, columns * step)
    plot.y_range = Range1d(rows * step, 0)
    grid_y, grid_x = np.mgrid[:rows, :columns]
    source = ColumnDataSource(
        {
            "x": ((grid_x.ravel() + 0.5) * step).tolist(),
            "y": ((grid_y.ravel() + 0.5) * step).tolist(),
            "lhs": (grid_y.ravel() * step).tolist(),
            "rhs": (grid_x.ravel() * step).tolist(),
            "value": cells.ravel().tolist(),
        }
    )
    mapper = LinearColorMapper(palette=Viridis256, low=0, high=float(cells.max(initial=0)) or 1.0)
    colour = {"field": "value", "transform": mapper}
    plot.rect("x", "y", step * 0.96, step * 0.96, source=source, fill_color=colour, line_color=None)
    tips = [(f"{labels[1]}, {labels[0]}", "@lhs, @rhs"), (labels[2], "@value{0,0}")]
    plot.add_tools(HoverTool(tooltips=tips, attachment="below"))
    shown = NumeralTickFormatter(format="0.[0]a")
    plot.add_layout(ColorBar(color_mapper=mapper, formatter=shown, width=10, padding=4), "right")
    for axis, count in ((plot.xaxis, columns), (plot.yaxis, rows)):
        ticks = range(0, count, -(-count // 16))
        _set_ticks(axis, {(tick + 0.5) * step: str(tick * step) for tick in ticks})
    plot.grid.visible = False
    yield Chart(name, title, plot, note)


def to_json(plot: Any, target: str) -> str:
    """Write the figure for the element `target`; equal charts give equal text."""
    drawn = json.dumps(json_item(plot, target), separators=(",", ":"), allow_nan=False)
    # Bokeh numbers the objects of a process, whatever chart they belong to. The pattern never matches a
    # user's text, in which quotes are escaped.
    ids = dict.fromkeys(match[2] for match in _ID.finditer(drawn))
    numbers = {name: f"{target}-{count}" for count, name in enumerate(ids)}
    return _ID.sub(lambda match: f'"{match[1]}":"{numbers[match[2]]}"', drawn)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _figure(name: str, height: int, x_label: str, y_label: str | None, x_scale: Scale, y_scale: Scale) -> Any:
    plot = figure(
        name=name,
        height=height,
        sizing_mode="stretch_width",
        x_axis_label=_with_scale(x_label, x_scale),
        y_axis_label=_with_scale(y_label, y_scale),
        x_axis_type=x_scale,
        y_axis_type=y_scale,
        toolbar_location=None,
        tools="",
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        min_border_right=12,
    )
    for axis in plot.axis:
        axis.minor_tick_line_color = None
        axis.axis_label_text_font_style = "normal"
        axis.axis_label_text_font_size = axis.major_label_text_font_size = "12px"
        axis.axis_label_text_font = axis.major_label_text_font = "system-ui, sans-serif"
    return plot


def _with_scale(label: str | None, scale: Scale) -> str | None:
    """The label of an axis; an axis is linear where its label does not say otherwise."""
    return f"{label} (log scale)" if label and scale == "log" else label


def _set_ticks(axis: Any, names: Mapping[float, str]) -> None:
    axis.ticker = FixedTicker(ticks=list(names))
    axis.major_label_overrides = dict(names)


def _place_legend(plot: Any, num_series: int) -> None:
    if not plot.legend:
        return
    legend = plot.legend[0]
    if num_series < 2:
        legend.visible = False
        return
    plot.add_layout(legend, "above")
    legend.orientation = "horizontal"
    legend.ncols = 3
    legend.click_policy = "hide"
    legend.padding = legend.margin = 2
    legend.label_text_font_size = "12px"
    legend.border_line_color = legend.background_fill_color = None


def _plain(text: str) -> str:
    """Keep Bokeh from reading the text as TeX, for which it would fetch a library."""
    return _MATHS.sub(lambda match: match[0] + "\u200b", text)
