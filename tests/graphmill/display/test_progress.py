"""Progress on terminals of any width."""

import io
import re
import time

import pytest
from rich.console import Console

from graphmill.display import terminal
from graphmill.display.progress import MIN_BAR, Bars, Clock, Tick, displayed, end, show, shown_by

TICKS = [
    Tick("remapping a type of entities with a long name 17", 3e5, 1e6, "rows"),
    Tick(
        "training",
        4.56e7,
        1e8,
        "edges",
        {"epoch": "3/10", "loss": "0.1234", "mrr": "0.345", "bucket": "12,7"},
    ),
]
STEPS = ["look at tables", "encode", "index entities", "write the entity index", "translate", "write buckets"]


def drawn(bars: Bars, width: int) -> list[str]:
    console = bars.console
    console.width = width
    with console.capture() as capture:
        console.print(bars.renderable())
    return re.sub(r"\x1b\[[0-9;]*m", "", capture.get()).splitlines()


@pytest.fixture
def bars() -> Bars:
    return Bars(Console(file=io.StringIO(), force_terminal=True, color_system="standard"))


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_a_bar_keeps_its_length(bars: Bars, width: int) -> None:
    for tick in TICKS:
        bars.show(Tick(tick.description, tick.done / 2, tick.total, tick.unit, tick.fields))
        bars.show(tick)
    lines = drawn(bars, width)
    assert len(lines) == 2
    for line, percent in zip(lines, (30, 46), strict=True):
        assert len(line) <= width
        assert len(re.findall("[━╸╺]", line)) >= MIN_BAR
        assert f"{percent}%" in line
    assert ("epoch 3/10" in lines[1]) == (width >= 60)
    assert ("…" in lines[0]) == (width < 200)
    assert ("edges/s" in lines[1]) == (width == 200)


def test_finished_steps_fold_into_one_line(bars: Bars) -> None:
    bars.footer = "dashboard: http://127.0.0.1:8787/status"
    for name in STEPS:
        bars.show(Tick(f"etl: {name}", 0, 2, "tasks"))
        bars.show(Tick(f"etl: {name}", 2, 2, "tasks"))
    bars.show(Tick("training", 1, 2, "edges"))
    assert drawn(bars, 120)[1:] == [f"done: {', '.join(STEPS)}", bars.footer]
    bar, done, footer = drawn(bars, 60)
    assert bar.startswith("training ")
    assert done == "6 done: … write the entity index, translate, write buckets"
    assert footer == bars.footer


def test_work_that_begins_again_has_its_bar_again(bars: Bars) -> None:
    for done in (1, 2, 1):
        bars.show(Tick("evaluate", done, 2, "edges"))
    assert [line[:8] for line in drawn(bars, 80)] == ["evaluate"]
    with shown_by(bars):
        end("evaluate")
    assert drawn(bars, 80) == ["done: evaluate"]


def test_the_end_leaves_no_address_that_is_gone(bars: Bars) -> None:
    bars.footer = "dashboard: http://127.0.0.1:8787/status"
    with bars.drawn():
        assert bars.footer in drawn(bars, 80)
    assert "".join(drawn(bars, 80)) == ""


def test_work_that_begins_again_has_a_rate_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two members of an ensemble, one after the other on a worker."""
    clock = Clock()
    rates = []
    for now, done in ((1.0, 0), (101.0, 1000), (102.0, 0), (104.0, 200)):
        monkeypatch.setattr(time, "monotonic", lambda now=now: now)
        rates.append(clock.rate(Tick("training, worker 1", done, 1000, "edges")))
    assert rates == [0, 10, 0, 100]


def test_lines_of_a_log_leave_out_work_that_ends_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A step of half a second; one of 25; two of one tick each, after half a second and after three."""
    work = [("short", 0, 0), ("short", 2, 0.5), ("long", 0, 0.5), ("long", 1, 15), ("long", 2, 25.5)]
    work += [("at once", 2, 26), ("late", 2, 29)]
    caplog.set_level("INFO", logger="graphmill")
    with displayed():
        for name, done, now in work:
            monkeypatch.setattr(time, "monotonic", lambda now=now: now)
            show(Tick(name, done, 2, "tasks", {"file": "x"}))
    assert caplog.messages == [
        "long: 1 of 2 tasks, 0.069 tasks/s, 14 s left, file x",
        "long: 2 of 2 tasks, 0.08 tasks/s, file x",
        "late: 2 of 2 tasks, file x",
    ]
    fields = getattr(caplog.records[0], terminal.FIELDS)  # of a line of JSON
    assert fields == {"description": "long", "done": 1, "total": 2, "unit": "tasks", "file": "x"}
