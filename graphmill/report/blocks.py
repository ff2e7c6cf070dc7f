"""Parts of a page: sections of tiles, charts, tables and notes, without HTML and without a chart library."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Scale = Literal["linear", "log"]


@dataclass(frozen=True)
class Tile:
    """One figure, large; `note` below it."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Tiles:
    """Figures side by side."""

    tiles: Sequence[Tile]
    kind: str = "tiles"


@dataclass(frozen=True)
class Table:
    """Rows of text; columns after the first `num_text_columns` are numbers, aligned on the right."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    num_text_columns: int = 1
    best: Mapping[int, int] = field(default_factory=dict)
    """The highlighted column of a row."""
    note: str = ""
    folded: bool = False
    kind: str = "table"


@dataclass(frozen=True)
class Note:
    """A sentence; `level` is its colour."""

    text: str
    level: Literal["plain", "warning", "error"] = "plain"
    preformatted: str = ""
    kind: str = "note"


@dataclass(frozen=True)
class Chart:
    """A chart; `note` below it."""

    name: str
    title: str
    note: str = field(default="", kw_only=True)
    kind: str = field(default="chart", init=False)


@dataclass(frozen=True)
class Series:
    """Named points of one colour; the chart shows a point's label when the mouse is over the point."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    style: Literal["line", "thin", "points", "both"] = "both"
    labels: Sequence[str] = ()


@dataclass(frozen=True)
class Curves(Chart):
    """Series over a common axis."""

    x_label: str
    y_label: str
    series: Sequence[Series]
    x_scale: Scale = "linear"
    y_scale: Scale = "linear"
    from_zero: bool = False
    whole_x: bool = False
    """Only whole numbers along x: epochs, partitions."""
    square: bool = False
    """As high as wide, without ticks: a map."""


@dataclass(frozen=True)
class Bars(Chart):
    """Bars, one per label and group; horizontal, because labels are long."""

    value_label: str
    labels: Sequence[str]
    groups: Mapping[str, Sequence[float]]
    scale: Scale = "linear"


@dataclass(frozen=True)
class HeatMap(Chart):
    """Counts of cells [row][column]."""

    x_label: str
    y_label: str
    value_label: str
    cells: Sequence[Sequence[float]]
    partitions_a_cell: int = 1


Block = Tiles | Table | Note | Chart


@dataclass(frozen=True)
class Section:
    """A part of the page with a place in its menu."""

    name: str
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Page:
    """A whole report."""

    title: str
    subtitle: str
    status: str
    sections: Sequence[Section]
