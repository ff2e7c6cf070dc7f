"""Progress of long work: reported by any process, shown by the command.

`report` works in the process of the command and inside Dask tasks, where progress travels as a Dask event. A
terminal shows bars. Elsewhere progress becomes log lines, so that the log of a batch job stays readable.
"""

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Protocol

from distributed import Worker, get_worker
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from graphmill.display import readable, terminal
from graphmill.errors import ClusterError

TOPIC = "graphmill-progress"
WORKER_INTERVAL_S = 0.5
LINE_INTERVAL_S = 10.0
SHORT_S = 1.0  # work that ends sooner has no line
MIN_BAR = 20  # characters
MIN_LABEL = 12

log = logging.getLogger("graphmill")


@dataclass(frozen=True)
class Tick:
    """Progress of one piece of work: `done` of `total` units."""

    description: str
    done: float
    total: float
    unit: str
    fields: dict[str, str | float] = field(default_factory=dict)  # texts for people; numbers: metrics too

    @property
    def finished(self) -> bool:
        """Tell whether all units are done."""
        return self.done >= self.total


class Display(Protocol):
    """A view of progress."""

    def show(self, tick: Tick) -> None:
        """Show the newest progress."""


class CancelledError(ClusterError):
    """The result of the task is no longer wanted."""


_last_reported: dict[str, float] = {}
_latest_work: list[str] = []
_displays: list[Display] = []


def report(description: str, done: float, total: float, unit: str, **fields: str | float) -> None:
    """Report the progress of the work called `description`; frequent calls are cheap."""
    tick = Tick(description, done, total, unit, fields)
    work_on(description, **fields, done=f"{100 * done / max(total, 1):.0f} %")
    stop_if_cancelled()
    try:
        worker = get_worker()
    except ValueError:  # this is no Dask task
        show(tick)
        return
    now = time.monotonic()
    if tick.finished or now - _last_reported.get(description, 0.0) >= WORKER_INTERVAL_S:
        _last_reported[description] = now
        worker.log_event(TOPIC, asdict(tick))


def work_on(description: str, **fields: str | float) -> None:
    """Note what this process works on, for the page "Workers" of Dask's dashboard."""
    _latest_work[:] = [", ".join([description, *_texts(fields)])]


def worked_on(worker: Worker) -> str:
    """Say what the worker of this process works on; called by Dask at each heartbeat."""
    return _latest_work[0] if _latest_work and worker.state.executing_count else ""


def stop_if_cancelled() -> None:
    """Raise CancelledError in a Dask task that has been cancelled: Dask does not interrupt tasks."""
    with suppress(KeyError, ValueError, AttributeError):  # this is no Dask task
        worker = get_worker()
        if worker.state.tasks[worker.get_current_task()].state == "cancelled":
            raise CancelledError("the task was cancelled by the process that asked for it")


def show(tick: Tick) -> None:
    """Show progress that has arrived in this process."""
    for display in _displays if tick.total else ():
        display.show(tick)


def footer(text: str) -> bool:
    """Show a line below the bars, and tell whether there are bars."""
    bars = [display for display in _displays if isinstance(display, Bars)]
    for display in bars:
        display.footer = text
    return bool(bars)


def end(description: str) -> None:
    """Fold the bar of work that is done, if there are bars; its last tick may come late, or never."""
    for display in _displays:
        if isinstance(display, Bars):
            display.end(description)


@contextmanager
def displayed() -> Iterator[None]:
    """Show progress during the block: bars on a terminal, log lines elsewhere."""
    console = Console(stderr=True)
    if terminal.options.quiet:
        yield
    elif console.is_terminal and not terminal.options.json_lines:
        bars = Bars(console)
        with terminal.shared(console), bars.drawn(), shown_by(bars):
            yield
    else:
        with shown_by(_Lines()):
            yield


@contextmanager
def shown_by(display: Display) -> Iterator[None]:
    """Send progress to `display` too during the block."""
    _displays.append(display)
    try:
        yield
    finally:
        _displays.remove(display)


class Clock:
    """Measures the rate of each piece of work, from its first tick; again when the work starts again."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[float, float]] = {}
        self._latest: dict[str, float] = {}

    def rate(self, tick: Tick) -> float:
        """Return the units per second; 0 while the rate is unknown."""
        now = time.monotonic()
        first_done, first_time = self._first.get(tick.description, (0.0, 0.0))
        latest = self._latest.get(tick.description, 0.0)
        self._latest[tick.description] = tick.done
        if not first_time or tick.done < latest:
            self._first[tick.description] = (tick.done, now)
            return 0.0
        return (tick.done - first_done) / max(now - first_time, 1e-9)

    def rate_and_time_left(self, tick: Tick) -> tuple[list[str], list[str]]:
        """Return the rate and the time left as texts, as far as they are known."""
        rate = self.rate(tick)
        if rate <= 0:
            return [], []
        left_s = round((tick.total - tick.done) / rate)
        left = [] if tick.finished else [f"{readable.duration(left_s)} left"]
        return [f"{_short(rate)} {tick.unit}/s"], left


class Bars:
    """Progress bars, one per unfinished description; below them the finished ones, and a line.

    A bar has at least MIN_BAR characters: in a narrow terminal, labels are shortened, and figures left out.
    """

    footer = ""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._clock = Clock()
        self._unfinished: dict[str, tuple[Tick, list[str]]] = {}
        self._finished: list[str] = []
        self._live: Live | None = None

    @contextmanager
    def drawn(self) -> Iterator[None]:
        """Draw the bars during the block; the last state stays, without the line."""
        with Live(get_renderable=self.renderable, console=self.console, refresh_per_second=10) as self._live:
            try:
                yield
            finally:
                self.footer = ""  # what it tells of ends here

    def show(self, tick: Tick) -> None:
        """Draw the bar of unfinished work; fold finished work into the line below the bars."""
        name = tick.description
        if tick.finished:
            self.end(name)
            return
        self._finished = [finished for finished in self._finished if finished != name]
        rate, left = self._clock.rate_and_time_left(tick)
        figures = [*left, *_texts(tick.fields), *rate]
        is_new = name not in self._unfinished
        self._unfinished[name] = tick, figures
        if is_new and self._live:
            self._live.refresh()

    def end(self, description: str) -> None:
        """Fold the bar of finished work into the line below the bars."""
        self._unfinished.pop(description, None)
        self._finished = [*(finished for finished in self._finished if finished != description), description]

    def renderable(self) -> RenderableType:
        """Return the bars, the finished descriptions in one line, and the line below them."""
        width = self.console.width
        lines: list[RenderableType] = []
        if self._unfinished:
            lines.append(_rows(list(self._unfinished.values()), width))
        if self._finished:
            done = _folded(self._finished, width)
            lines.append(Text(done, style="dim", no_wrap=True, overflow="ellipsis"))
        if self.footer:
            lines.append(Text(self.footer, style="dim"))
        return Group(*lines)


def _rows(ticks: list[tuple[Tick, list[str]]], width: int) -> Table:
    """Draw a label, a bar, the percentage and figures for each tick, in `width` characters."""
    room = width - MIN_BAR - len(" 100% ") - 1
    longest = max(len(tick.description) for tick, _ in ticks)
    texts = [_fitting(figures, room - min(longest, MIN_LABEL)) for _, figures in ticks]
    label_width = max(min(longest, room - max(map(len, texts))), 1)
    bar_width = width - label_width - max(map(len, texts)) - len(" 100% ") - 1
    table = Table.grid(padding=(0, 1))
    table.add_column(width=label_width, no_wrap=True)
    table.add_column(width=bar_width)
    table.add_column(width=4, justify="right")
    table.add_column(no_wrap=True)
    for (tick, _), text in zip(ticks, texts, strict=True):
        bar = ProgressBar(total=tick.total, completed=tick.done, width=bar_width)
        label = Text(readable.shortened(tick.description, label_width))
        table.add_row(label, bar, f"{100 * tick.done / tick.total:.0f}%", Text(text))
    return table


def _fitting(figures: list[str], width: int) -> str:
    """Join as many of the first figures as fit."""
    text = ""
    for figure in figures:
        longer = f"{text}  {figure}".lstrip()
        if len(longer) > width:
            break
        text = longer
    return text


def _folded(finished: list[str], width: int) -> str:
    """Name the finished work in one line; where it is too long, the last of it."""
    names = [name.rpartition(": ")[2] for name in finished]
    line = f"done: {', '.join(names)}"
    while len(line) > width and len(names) > 1:
        names = names[1:]
        line = f"{len(finished)} done: … {', '.join(names)}"
    return line


class _Lines:
    """Log lines, one per description every ten seconds, and one at its end, unless it has ended at once."""

    def __init__(self) -> None:
        self._clock = Clock()
        self._latest = time.monotonic()
        self._begun: dict[str, float] = {}
        self._shown: dict[str, float] = {}

    def show(self, tick: Tick) -> None:
        rate, left = self._clock.rate_and_time_left(tick)
        parts = f"{_short(tick.done)} of {_short(tick.total)} {tick.unit}"
        texts = [parts, *rate, *left, *_texts(tick.fields)]
        now, name = time.monotonic(), tick.description
        self._begun.setdefault(name, self._latest if tick.done else now)  # or since the tick of other work
        self._latest = now
        since = self._begun.pop(name) if tick.finished else self._shown.setdefault(name, now)
        if now - since < (SHORT_S if tick.finished else LINE_INTERVAL_S):
            return
        self._shown[name] = now
        fields = {key: getattr(tick, key) for key in ("description", "done", "total", "unit")}
        extra = {terminal.FIELDS: fields | tick.fields}
        log.info("%s: %s", name, ", ".join(texts), extra=extra)


def _texts(fields: Mapping[str, str | float]) -> list[str]:
    return [
        f"{name.replace('_', ' ')} {value if isinstance(value, str) else f'{value:.4g}'}"
        for name, value in fields.items()
    ]


def _short(number: float) -> str:
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= size:
            return f"{number / (1e3 if suffix == 'k' else size):.4g}{suffix}"
    return f"{number:.0f}" if number >= 100 or number == int(number) else f"{number:.2g}"
