"""Blocks of numbers -> Bokeh figures, as JSON that the page's own copy of BokehJS draws.

The page sets the colours of axes and grids, because they depend on its light or dark mode. The colours here
are readable in both modes.
"""

import json
import re
from collections.abc import Callable
from itertools import cycle
from typing import Any

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
from graphmill.report.blocks import Bars, Chart, Curves, HeatMap, Scale, Series

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


def to_json(chart: Chart, target: str) -> str:
    """Draw the chart for the element `target`; equal charts give equal text."""
    draw: dict[type[Chart], Callable[[Any], Any]] = {Curves: _curves, Bars: _bars, HeatMap: _heat_map}
    drawn = json.dumps(json_item(draw[type(chart)](chart), target), separators=(",", ":"), allow_nan=False)
    # Bokeh numbers the objects of a process, whatever chart they belong to. The pattern never matches a
    # user's text, in which quotes are escaped.
    ids = dict.fromkeys(match[2] for match in _ID.finditer(drawn))
    numbers = {name: f"{target}-{count}" for count, name in enumerate(ids)}
    return _ID.sub(lambda match: f'"{match[1]}":"{numbers[match[2]]}"', drawn)


def _curves(chart: Curves) -> Any:
    plot = _figure(chart.name, HEIGHT, chart.x_label, chart.y_label, chart.x_scale, chart.y_scale)
    for number, series in enumerate(chart.series):
        _add_series(plot, chart, series, number)
    if chart.square:
        plot.sizing_mode, plot.aspect_ratio, plot.match_aspect = "scale_width", 1, True
        plot.xaxis.major_label_text_font_size = plot.yaxis.major_label_text_font_size = "0px"
        plot.axis.major_tick_in = plot.axis.major_tick_out = 0
        plot.grid.visible = False
    else:
        plot.axis.formatter = NumeralTickFormatter(format=SHORT)
    if chart.whole_x:
        plot.xaxis.ticker.min_interval = 1
    if chart.from_zero:
        plot.y_range.start = 0
    _legend(plot, len(chart.series))
    return plot


def _add_series(plot: Any, chart: Curves, series: Series, number: int) -> None:
    turn = number // len(COLOURS) % len(MARKERS)
    columns: dict[str, list[Any]] = {"x": list(series.x), "y": list(series.y)}
    tips = [(chart.x_label, "@x"), (chart.y_label, "@y")]
    if series.labels:
        columns["label"] = [_plain(each) for each in series.labels]
        tips = [("", "@label")]
    look: dict[str, Any] = {
        "source": ColumnDataSource(columns),
        "color": REST if series.is_rest else COLOURS[number % len(COLOURS)],
        "legend_label": _plain(shortened(series.name)),
    }
    if series.style != "points":
        thin = series.style == "thin"
        width, alpha = (1, 0.55) if thin else (2, 1)
        drawn = plot.line("x", "y", line_width=width, line_dash=DASHES[turn], alpha=alpha, **look)
    if series.style in ("points", "both"):
        size, alpha = (5 + turn, 0.75) if chart.square else (7, 1)
        drawn = plot.scatter("x", "y", size=size, marker=MARKERS[turn], alpha=alpha, **look)
    plot.add_tools(HoverTool(renderers=[drawn], tooltips=tips, attachment="below"))


def _bars(chart: Bars) -> Any:
    num_groups, count = len(chart.groups), len(chart.labels)
    height = 74 + count * (12 + 12 * num_groups)
    plot = _figure(chart.name, height, chart.value_label, None, chart.scale, "linear")
    plot.y_range = Range1d(count - 0.5, -0.5)
    thickness = 0.8 / num_groups
    least = min((v for values in chart.groups.values() for v in values if v > 0), default=1)
    left = least / 2 if chart.scale == "log" else 0  # a log axis has no zero
    groups = zip(cycle(COLOURS), chart.groups.items(), strict=False)
    for position, (colour, (name, values)) in enumerate(groups):
        offset = (position - (num_groups - 1) / 2) * thickness
        source = ColumnDataSource(
            {
                "y": [row + offset for row in range(count)],
                "value": [max(value, left) for value in values],
                "shown": [f"{value:,.6g}" for value in values],
                "label": [_plain(shortened(label, 100)) for label in chart.labels],
            }
        )
        legend = {"legend_label": _plain(name)} if num_groups > 1 else {}
        look = {"height": thickness * 0.9, "color": colour, **legend}
        bars = plot.hbar("y", right="value", left=left, source=source, **look)
        tips = [("", "@label"), (_plain(name), "@shown")]
        plot.add_tools(HoverTool(renderers=[bars], tooltips=tips, attachment="below"))
    plot.yaxis.ticker = FixedTicker(ticks=list(range(count)))
    plot.yaxis.major_label_overrides = {
        row: _plain(shortened(label, LABEL_CHARS)) for row, label in enumerate(chart.labels)
    }
    plot.ygrid.visible = False
    plot.xaxis.formatter = NumeralTickFormatter(format=SHORT)
    _legend(plot, num_groups)
    return plot


def _heat_map(chart: HeatMap) -> Any:
    cells = np.asarray(chart.cells, np.float64)
    rows, columns = cells.shape
    step = chart.partitions_a_cell
    height = min(420, 130 + 34 * rows)
    plot = _figure(chart.name, height, chart.x_label, chart.y_label, "linear", "linear")
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
    high = float(cells.max(initial=0)) or 1.0
    mapper = LinearColorMapper(palette=Viridis256, low=0, high=high)
    colour = {"field": "value", "transform": mapper}
    plot.rect("x", "y", step * 0.96, step * 0.96, source=source, fill_color=colour, line_color=None)
    tips = [(f"{chart.y_label}, {chart.x_label}", "@lhs, @rhs"), (chart.value_label, "@value{0,0}")]
    plot.add_tools(HoverTool(tooltips=tips, attachment="below"))
    shown = NumeralTickFormatter(format="0.[0]a")
    plot.add_layout(ColorBar(color_mapper=mapper, formatter=shown, width=10, padding=4), "right")
    for axis, count in ((plot.xaxis, columns), (plot.yaxis, rows)):
        every = -(-count // 16)
        ticks = range(0, count, every)
        axis.ticker = FixedTicker(ticks=[(each + 0.5) * step for each in ticks])
        axis.major_label_overrides = {(each + 0.5) * step: str(each * step) for each in ticks}
    plot.grid.visible = False
    return plot


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


def _legend(plot: Any, num_series: int) -> None:
    if not plot.legend:
        return
    if num_series < 2:
        plot.legend.visible = False
        return
    legend = plot.legend[0]
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
