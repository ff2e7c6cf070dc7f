"""Progress of long work: reported by any process, shown by the command.

`tell` works in the process of the command and inside Dask tasks, where progress travels as a Dask event. A
terminal shows bars. Elsewhere progress becomes log lines, so that the log of a batch job stays readable.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Protocol

from distributed import get_worker
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn
from rich.text import Text

from graphmill.display import readable, terminal
from graphmill.errors import ClusterError

TOPIC = "graphmill-progress"
WORKER_INTERVAL_S = 0.5
LINE_INTERVAL_S = 10.0

log = logging.getLogger("graphmill")


@dataclass(frozen=True)
class Tick:
    """Progress of one piece of work: `done` of `total` units."""

    description: str
    done: float
    total: float
    unit: str
    fields: dict[str, str] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether all units are done."""
        return self.done >= self.total


class Display(Protocol):
    """A view of progress."""

    def show(self, tick: Tick) -> None:
        """Show the newest progress."""


class CancelledError(ClusterError):
    """The result of the task is no longer wanted."""


_last_told: dict[str, float] = {}
_displays: list[Display] = []


def tell(description: str, done: float, total: float, unit: str, **fields: str) -> None:
    """Report the progress of the work called `description`; frequent calls are cheap.

    Raises:
        CancelledError: this is a Dask task that has been cancelled.
    """
    tick = Tick(description, done, total, unit, fields)
    stop_if_cancelled()
    try:
        worker = get_worker()
    except ValueError:  # this is no Dask task
        show(tick)
        return
    now = time.monotonic()
    if tick.finished or now - _last_told.get(description, 0.0) >= WORKER_INTERVAL_S:
        _last_told[description] = now
        worker.log_event(TOPIC, asdict(tick))


def stop_if_cancelled() -> None:
    """End the running Dask task if it has been cancelled: Dask does not interrupt tasks.

    Raises:
        CancelledError: the task has been cancelled.
    """
    with suppress(KeyError, ValueError, AttributeError):  # this is no Dask task
        worker = get_worker()
        if worker.state.tasks[worker.get_current_task()].state == "cancelled":
            raise CancelledError("the task was cancelled by the process that asked for it")


def show(tick: Tick) -> None:
    """Show progress that has arrived in this process."""
    if _displays:
        _displays[-1].show(tick)


def footer(text: str) -> None:
    """Show a line below the bars, if there are bars."""
    for display in _displays:
        if isinstance(display, _Bars):
            display.footer = text


@contextmanager
def displayed() -> Iterator[None]:
    """Show progress during the block: bars on a terminal, log lines elsewhere."""
    console = Console(stderr=True)
    if terminal.options.quiet:
        yield
    elif console.is_terminal and not terminal.options.json_lines:
        bars = _Bars(console)
        with terminal.shared(console), bars, shown_by(bars):
            yield
    else:
        with shown_by(_Lines()):
            yield


@contextmanager
def shown_by(display: Display) -> Iterator[None]:
    """Send progress to `display` during the block."""
    _displays.append(display)
    try:
        yield
    finally:
        _displays.remove(display)


class _Clock:
    """Measures the rate of each piece of work from its first tick on."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[float, float]] = {}

    def texts(self, tick: Tick) -> list[str]:
        """Return the rate with the time left, if the rate is known, and the fields of the tick."""
        fields = [f"{name} {value}" for name, value in tick.fields.items()]
        now = time.monotonic()
        first_done, first_time = self._first.get(tick.description, (0.0, 0.0))
        if not first_time or tick.done < first_done:
            self._first[tick.description] = (tick.done, now)
            return fields
        rate = (tick.done - first_done) / max(now - first_time, 1e-9)
        if rate <= 0:
            return fields
        left_s = round((tick.total - tick.done) / rate)
        left = "" if tick.finished else f", {readable.duration(left_s)} left"
        return [f"{_short(rate)} {tick.unit}/s{left}", *fields]


class _Bars(Progress):
    """Rich progress bars, one per description, with a line below them."""

    footer = ""

    def __init__(self, console: Console) -> None:
        super().__init__(
            TextColumn("{task.description:<24}", markup=False),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TextColumn("{task.fields[summary]}", markup=False),
            console=console,
            expand=True,
        )
        self._clock = _Clock()
        self._ids: dict[str, TaskID] = {}

    def get_renderables(self) -> Iterator[RenderableType]:
        """Yield the bars and the line."""
        yield from super().get_renderables()
        if self.footer and self.tasks:
            yield Text(self.footer, style="dim")

    def show(self, tick: Tick) -> None:
        name = tick.description
        if name not in self._ids:
            self._ids[name] = self.add_task(name, summary="")
        summary = "  ".join(self._clock.texts(tick))
        self.update(self._ids[name], completed=tick.done, total=tick.total, summary=summary)


class _Lines:
    """Log lines, one per description every ten seconds, and one at its end."""

    def __init__(self) -> None:
        self._clock = _Clock()
        self._shown: dict[str, float] = {}

    def show(self, tick: Tick) -> None:
        texts = [f"{_short(tick.done)} of {_short(tick.total)} {tick.unit}", *self._clock.texts(tick)]
        now = time.monotonic()
        if not tick.finished and now - self._shown.setdefault(tick.description, now) < LINE_INTERVAL_S:
            return
        self._shown[tick.description] = now
        fields = {name: getattr(tick, name) for name in ("description", "done", "total", "unit")}
        extra = {terminal.FIELDS: fields | tick.fields}
        log.info("%s: %s", tick.description, ", ".join(texts), extra=extra)


def _short(number: float) -> str:
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= size:
            return f"{number / (1e3 if suffix == 'k' else size):.4g}{suffix}"
    return f"{number:.0f}" if number >= 100 or number == int(number) else f"{number:.2g}"
