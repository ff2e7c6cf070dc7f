"""Progress of long work, told from anywhere and shown in one place.

`tell` works in the process that shows it and inside Dask tasks, where it travels as a Dask event. On a
terminal it drives bars; elsewhere it becomes plain log lines, so that a batch's log stays readable.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from distributed import get_worker
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn
from rich.text import Text

from graphmill.display import terminal
from graphmill.errors import ClusterError

TOPIC = "graphmill-progress"
WORKER_INTERVAL_S = 0.5
LINE_INTERVAL_S = 10.0

log = logging.getLogger("graphmill")


@dataclass(frozen=True)
class Tick:
    """How far one piece of work has come."""

    description: str
    done: float
    total: float
    unit: str
    fields: dict[str, str] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether nothing is left."""
        return self.done >= self.total


class Display(Protocol):
    """Where progress is shown."""

    def update(self, tick: Tick) -> None:
        """Show the newest state."""


class CancelledError(ClusterError):
    """The task's result is no longer wanted."""


def tell(description: str, done: float, total: float, unit: str, **fields: str) -> None:
    """Say how far the work called `description` has come; call it as often as you like.

    Raises:
        CancelledError: inside a Dask task that has been cancelled meanwhile.
    """
    tick = Tick(description, done, total, unit, fields)
    try:
        worker = get_worker()
    except ValueError:
        show(tick)
        return
    _stop_if_cancelled(worker)
    now = time.monotonic()
    if tick.finished or now - _told.get(description, 0.0) >= WORKER_INTERVAL_S:
        _told[description] = now
        worker.log_event(TOPIC, asdict(tick))


def stop_if_cancelled() -> None:
    """Notice that nobody wants the running Dask task any more; elsewhere it does nothing.

    Raises:
        CancelledError: it has been cancelled.
    """
    try:
        worker = get_worker()
    except ValueError:
        return
    _stop_if_cancelled(worker)


def show(tick: Tick) -> None:
    """Show a tick that has arrived in this process."""
    if _displays:
        _displays[-1].update(tick)


@contextmanager
def displayed() -> Iterator[None]:
    """Show progress while the block runs: bars on a terminal, log lines elsewhere."""
    console = Console(stderr=True)
    if terminal.options.quiet:
        yield
    elif console.is_terminal and not terminal.options.json_lines:
        bars = _Bars(console)
        terminal.share(console)
        try:
            with bars.board, _shown_by(bars):
                yield
        finally:
            terminal.share(None)
    else:
        with _shown_by(_Lines()):
            yield


def footer(text: str) -> None:
    """What stands below the bars, where there are any: the address of the dashboard."""
    for display in _displays:
        if isinstance(display, _Bars):
            display.board.footer = text


_told: dict[str, float] = {}
_displays: list[Display] = []


@contextmanager
def _shown_by(display: Display) -> Iterator[None]:
    _displays.append(display)
    try:
        yield
    finally:
        _displays.remove(display)


def _stop_if_cancelled(worker: Any) -> None:
    # A running task is not interrupted by Dask when its future is cancelled; here it notices by itself.
    with suppress(KeyError, ValueError, AttributeError):
        task = worker.state.tasks[worker.get_current_task()]
        if task.state == "cancelled":
            raise CancelledError("the task was cancelled by the process that asked for it")


class _Clock:
    """Rate and time left of each piece of work, counted from its first tick."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[float, float]] = {}

    def summary(self, tick: Tick) -> str:
        now = time.monotonic()
        first_done, first_time = self._first.get(tick.description, (0.0, 0.0))
        if not first_time or tick.done < first_done:
            self._first[tick.description] = (tick.done, now)
            return ""
        rate = (tick.done - first_done) / max(now - first_time, 1e-9)
        if rate <= 0:
            return ""
        left = "" if tick.finished else f", {_duration((tick.total - tick.done) / rate)} left"
        return f"{_short(rate)} {tick.unit}/s{left}"


class _Board(Progress):
    """Bars, and a line below them."""

    footer = ""

    def get_renderables(self) -> Iterator[RenderableType]:
        """What is drawn."""
        yield from super().get_renderables()
        if self.footer and self.tasks:
            yield Text(self.footer, style="dim")


class _Bars:
    """Rich progress bars, one a description."""

    def __init__(self, console: Console) -> None:
        self.board = _Board(
            TextColumn("{task.description:<24}", markup=False),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TextColumn("{task.fields[summary]}", markup=False),
            console=console,
            expand=True,
        )
        self._clock = _Clock()
        self._tasks: dict[str, TaskID] = {}

    def update(self, tick: Tick) -> None:
        if tick.description not in self._tasks:
            self._tasks[tick.description] = self.board.add_task(
                tick.description, total=tick.total, summary=""
            )
        parts = [self._clock.summary(tick), *(f"{name} {value}" for name, value in tick.fields.items())]
        self.board.update(
            self._tasks[tick.description],
            completed=tick.done,
            total=tick.total,
            summary="  ".join(part for part in parts if part),
        )


class _Lines:
    """One log line a description every ten seconds, and one at its end."""

    def __init__(self) -> None:
        self._clock = _Clock()
        self._shown: dict[str, float] = {}

    def update(self, tick: Tick) -> None:
        summary = self._clock.summary(tick)
        now = time.monotonic()
        if not tick.finished and now - self._shown.setdefault(tick.description, now) < LINE_INTERVAL_S:
            return
        self._shown[tick.description] = now
        amount = f"{_short(tick.done)} of {_short(tick.total)} {tick.unit}"
        parts = [amount, summary, *(f"{name} {value}" for name, value in tick.fields.items())]
        told = {name: getattr(tick, name) for name in ("description", "done", "total", "unit")}
        text = ", ".join(part for part in parts if part)
        log.info("%s: %s", tick.description, text, extra={terminal.FIELDS: told | tick.fields})


def _short(number: float) -> str:
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= size:
            return f"{number / (1e3 if suffix == 'k' else size):.4g}{suffix}"
    return f"{number:.0f}" if number >= 100 or number == int(number) else f"{number:.2g}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
