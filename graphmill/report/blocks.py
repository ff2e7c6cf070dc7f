"""What a page is made of: sections of tiles, charts, tables and notes; no HTML and no chart library here."""

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
    """Of a row, the column that stands out."""
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
class Series:
    """Named points of one colour; `labels` are shown when a point is pointed at."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    style: Literal["line", "thin", "points", "both"] = "both"
    labels: Sequence[str] = ()


@dataclass(frozen=True)
class Curves:
    """Series over a common axis."""

    name: str
    title: str
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
    note: str = ""
    kind: str = "chart"


@dataclass(frozen=True)
class Bars:
    """Bars, one a label and group; horizontal, so that labels have room."""

    name: str
    title: str
    value_label: str
    labels: Sequence[str]
    groups: Mapping[str, Sequence[float]]
    scale: Scale = "linear"
    note: str = ""
    kind: str = "chart"


@dataclass(frozen=True)
class HeatMap:
    """Counts of cells [row][column]."""

    name: str
    title: str
    x_label: str
    y_label: str
    value_label: str
    cells: Sequence[Sequence[float]]
    partitions_a_cell: int = 1
    note: str = ""
    kind: str = "chart"


Chart = Curves | Bars | HeatMap
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
