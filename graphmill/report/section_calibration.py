"""Probabilities of answers: how far they are from the share of true answers, and a reliability table."""

from collections.abc import Iterator, Mapping
from typing import Any

from graphmill.display.readable import number
from graphmill.report.blocks import Block, Curves, Series, Table, Tile, Tiles
from graphmill.report.reading import mapping, records

FIRST = "top_"
SHOWN = f"{FIRST}10"
_TILES = {"ece": "calibration error", "brier": "Brier score", "brier_base_rate": "Brier of the base rate"}
_COLUMNS = {"num_answers": "answers", "true": "true"} | _TILES


def calibration(entry: Mapping[str, Any]) -> Iterator[Block]:
    """Blocks about `calibration` of the stage evaluate in run.json."""
    splits = f"fitted on {entry.get('fitted_on')}, measured on {entry.get('measured_on')}"
    shown = mapping(entry, SHOWN)
    found = [Tile(f"{label}, 10 best", number(shown[key])) for key, label in _TILES.items() if key in shown]
    yield Tiles([*found, Tile("queries", number(entry.get("num_queries")), splits)])
    rows = records(shown, "reliability")
    probability, true = ([float(row[key]) for row in rows] for key in ("probability", "true"))
    yield Curves(
        "reliability",
        "Reliability of the 10 best answers",
        x_label="probability",
        y_label="share of true answers",
        series=[Series("answers", probability, true), Series("exact", [0, 1], [0, 1], "thin", is_rest=True)],
        note="Good: points near the grey line. Bad: points below it, whose probabilities promise too much.",
    )
    yield Table(
        "Reliability of the 10 best answers",
        ["probability", "share of true answers", "answers"],
        [[number(row["probability"]), number(row["true"]), number(row["answers"])] for row in rows],
        folded=True,
        note="Good: the first two columns are alike. Rows hold equally many answers.",
    )
    yield Table(
        "Calibration",
        ["best of a query", *_COLUMNS.values()],
        [
            [name.removeprefix(FIRST), *(number(each.get(key)) for key in _COLUMNS)]
            for name, each in entry.items()
            if name.startswith(FIRST)
        ],
        note="Low figures are good. A Brier score near that of the base rate is bad: the probabilities then "
        "tell little more than the share of true answers.",
    )
