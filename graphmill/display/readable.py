"""Numbers, sizes and durations as text for people."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any


def number(value: Any, digits: int = 4) -> str:
    """Return a number as text: 1,234,567; 0.2831; `-` for None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "-" if value is None else str(value)
    if isinstance(value, int) or (abs(value) >= 1000 and value == value):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def size(num_bytes: Any) -> str:
    """Return bytes with a unit."""
    if not isinstance(num_bytes, int | float):
        return "-"
    amount = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(amount) < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:,.3g} TB"


def duration(seconds: Any) -> str:
    """Return seconds as text: 3.21 s; 2 min 05 s; 1 h 02 min."""
    if not isinstance(seconds, int | float):
        return "-"
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def moment(seconds: float) -> str:
    """Return a time, seconds since 1970, as local time: 10:42, with its date if not today."""
    local = datetime.fromtimestamp(seconds).astimezone()
    is_today = local.date() == datetime.now().astimezone().date()
    return f"{local:%H:%M}" if is_today else f"{local:%Y-%m-%d %H:%M}"


def shortened(text: str, length: int = 24) -> str:
    """Return the text, or its beginning with an ellipsis."""
    return text if len(text) <= length else text[: length - 1] + "…"


def quoted(values: Iterable[Any]) -> str:
    """Return values that users give as Python writes them, each shortened."""
    return ", ".join(shortened(repr(value), 80) for value in values)
