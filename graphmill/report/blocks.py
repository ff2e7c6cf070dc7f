"""Parts of a page: sections of tiles, charts, tables and notes, without HTML and without a chart library."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Scale = Literal["linear", "log"]
Level = Literal["plain", "good", "warning", "error"]


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
    note: str = field(kw_only=True)
    """Says below the table what is good there, and what is bad."""
    best: Mapping[int, int] = field(default_factory=dict, kw_only=True)
    """The highlighted column of a row."""
    folded: bool = field(default=False, kw_only=True)
    kind: str = field(default="table", init=False)


@dataclass(frozen=True)
class Note:
    """A sentence; `level` is its colour."""

    text: str
    level: Level = "plain"
    preformatted: str = ""
    kind: str = "note"


@dataclass(frozen=True)
class Chart:
    """A chart; `note` below it says what is good there, and what is bad."""

    name: str
    title: str
    note: str = field(kw_only=True)
    kind: str = field(default="chart", init=False)


@dataclass(frozen=True)
class Series:
    """Named points of one colour; the chart shows a point's label when the mouse is over the point."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    style: Literal["line", "thin", "points", "both"] = "both"
    labels: Sequence[str] = ()
    is_rest: bool = False
    """Everything that has no colour of its own: grey."""


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
    """Draw a map: as high as wide, with equal units, without ticks."""


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


def has_content(block: Block) -> bool:
    """Whether there is something to show: a card without content is left out."""
    match block:
        case Tiles():
            return bool(block.tiles)
        case Table():
            return bool(block.rows)
        case Curves():
            return any(_is_number(y) for series in block.series for y in series.y)
        case Bars():
            return any(_is_number(value) for values in block.groups.values() for value in values)
        case HeatMap():
            return bool(block.cells)
    return True


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


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
