"""One run per date: paths with the date, the previous date, and deletion of old dates.

Placeholders in strings of a configuration that is loaded with --date: docs/how_to/daily_runs.md.

    base/2026-11-19/_SUCCESS      `output: base/{date}`: finished
    base/2026-11-20/run.json      config.schedule holds the date and its previous date
    base/.2026-11-01.retired-*    in deletion; before it has this name, its marker is `._SUCCESS.retired`

Each date continues from its previous date: a chain. The chain must not fork: a date does not start while a
run works on an earlier date that would become its previous one. The chain must not break: a run first writes
its previous date to run.json, and then checks that this date is still finished. A run that deletes a date
first renames its `_SUCCESS`, and then checks that no run.json names the date. At least one sees the other.
"""

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import date, datetime, timedelta
from typing import Any

from graphmill import config, storage
from graphmill.config import Config
from graphmill.errors import ConfigError, FormatError, GraphMillError, LockedError
from graphmill.run import lock
from graphmill.run.record import read_record
from graphmill.vocab import RECORD

_DAY = r"date(?:[+-]\d+)?"
_PLACE = re.compile(rf"\{{({_DAY}|{_DAY}\.\.{_DAY}|previous_date)(?::([^{{}}]*))?\}}")
_DATE = re.compile(r"\{date(?::([^{}]*))?\}")
_ISO = "%Y-%m-%d"
_MAX_DAYS = 10_000
_SAMPLE = date(2026, 12, 31)
_STAGE_FOLDERS = ("entities", "checkpoint", "embeddings")
_TAKEN = f".{storage.MARKER}.retired"

log = logging.getLogger("graphmill")


def load(conf_uri: str | None, overrides: tuple[str, ...], day: date) -> Config:
    """Load the configuration for `day`, with all its placeholders filled."""

    def fill(raw: dict[str, Any]) -> dict[str, Any]:
        output = raw.get("output")
        if not isinstance(output, str):
            raise ConfigError("output: --date needs it, with {date} in it")
        is_chain = "{previous_date" in _text(raw)
        previous = _free_previous(output, day) if is_chain else _previous(output, day)[0]
        filled: dict[str, Any] = _filled(raw, day, previous)
        section = raw.get("schedule", {})
        if isinstance(section, Mapping):  # otherwise the check of the configuration refuses the section
            dates = {"date": str(day), "previous_date": str(previous) if previous else None}
            filled["schedule"] = {**section, **dates}
        return filled

    return config.load(conf_uri, overrides, transform=fill)


def refuse_places(raw: dict[str, Any]) -> dict[str, Any]:
    """Return `raw`, or refuse a configuration with placeholders for dates."""
    if match := _PLACE.search(_text(raw)):
        raise ConfigError(f"{match[0]}: the configuration is for a date; give --date YYYY-MM-DD")
    return raw


def hold_previous(settings: Config, output_template: str, save: Callable[[], None]) -> None:
    """Write the previous date to run.json (by `save`) before its output is read."""
    own = settings.schedule
    if settings.output is None or own.previous_date is None:
        return
    if _recorded_schedule(settings.output).get("previous_date") != own.previous_date:
        save()
    previous = _filled(output_template, date.fromisoformat(own.previous_date), None)
    if storage.read_marker(previous) is None:
        raise LockedError(
            f"{previous}: this run was to continue from this date, which is no longer finished; try again"
        )


def is_finished(settings: Config) -> bool:
    """Tell whether the date is finished and cannot run again, because its previous date was deleted."""
    own = settings.schedule
    if own.date is None or settings.output is None or storage.read_marker(settings.output) is None:
        return False
    recorded = _recorded_schedule(settings.output).get("previous_date")
    return recorded is not None and own.previous_date != recorded


def retire(output_template: str, keep: int, own: str | None = None) -> list[str]:
    """Delete all finished dates but the newest `keep`; return the URIs of the deleted outputs.

    A date stays if fewer than `keep` complete dates follow, if it is unfinished, if a run works on it, if
    such a date continues from it, or if its output holds a folder that was moved aside. All stay if the
    caller has caught up on its `own` date, which is older. An error is only logged: the next run tries again.
    """
    retired: list[str] = []
    with _logged("old dates stay"):
        outputs = _dated_outputs(output_template)
        for hidden in storage.list_hidden(_split(output_template)[0]):
            if ".retired-" in storage.name(hidden):  # an earlier run has not finished this deletion
                with _logged(f"{hidden} stays"):
                    storage.delete(hidden)
        finished = sorted(
            day
            for day, uri in outputs.items()
            if storage.read_marker(uri) is not None or storage.exists(storage.join(uri, _TAKEN))
        )
        complete = [
            day
            for day in finished
            if None not in (storage.read_marker(storage.join(outputs[day], name)) for name in _STAGE_FOLDERS)
        ]
        oldest_kept = complete[-keep] if len(complete) >= keep else date.min
        if own and date.fromisoformat(own) < oldest_kept:
            raise LockedError(f"{own} is older than the {keep} dates to keep: a newer run will delete it")
        needed = _needed(outputs)
        for day in finished:
            if day < oldest_kept and str(day) not in needed:
                with _logged(f"{outputs[day]} stays"):
                    _delete(output_template, day, outputs[day])
                    retired.append(outputs[day])
    return retired


@contextmanager
def _logged(what: str) -> Iterator[None]:
    try:
        yield
    except GraphMillError as error:
        log.warning("schedule: %s: %s", what, error)


def _needed(outputs: Mapping[date, str]) -> set[str | None]:
    """Return the previous dates of all dates that are unfinished or that a run works on."""
    return {
        _recorded_schedule(uri).get("previous_date")
        for uri in outputs.values()
        if storage.read_marker(uri) is None or lock.holder(uri)
    }


def _free_previous(output_template: str, day: date) -> date | None:
    """Find the previous date; a LockedError tells that a run works on a later date before `day`."""
    while True:
        previous, is_rerun = _previous(output_template, day)
        for other, uri in _dated_outputs(output_template).items():
            is_after = other < day and (previous is None or other > previous)
            if other != previous and (is_rerun or not is_after):
                continue
            if who := lock.holder(uri):
                raise LockedError(f"{uri}: {who}, and {day} would continue from it; try again later")
            if other != previous:
                log.info("schedule: %s is not finished and no run works on it; it is skipped", uri)
        if _previous(output_template, day)[0] == previous:  # else another date has finished meanwhile
            return previous


def _previous(output_template: str, day: date) -> tuple[date | None, bool]:
    outputs = _dated_outputs(output_template)
    own = outputs.get(day)
    recorded = _recorded_schedule(own) if own else {}
    if "previous_date" in recorded:
        before = recorded["previous_date"]
        same = [output for output in outputs if str(output) == before and output < day]
        if before is None or any(storage.read_marker(outputs[other]) is not None for other in same):
            return next(iter(same), None), True
    earlier = sorted((other for other in outputs if other < day), reverse=True)
    finished = (other for other in earlier if storage.read_marker(outputs[other]) is not None)
    return next(finished, None), False


def _filled(value: Any, day: date, previous: date | None, *, takes_days: bool = False) -> Any:
    if isinstance(value, Mapping):
        return {key: _filled(inner, day, previous, takes_days=key == "path") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        filled = [_filled(item, day, previous, takes_days=True) for item in value]
        as_lists = (
            new if isinstance(item, str) and isinstance(new, list) else [new]
            for item, new in zip(value, filled, strict=True)
        )
        return [item for some in as_lists for item in some if item is not None]
    if not isinstance(value, str):
        return value
    if previous is None and "{previous_date" in value:
        return None
    ranges = {place[1] for place in _PLACE.finditer(value) if ".." in place[1]}
    if not ranges:
        return _with_days(value, day, previous, day)
    if len(ranges) > 1:
        raise ConfigError(f"{value!r}: expected one range of days, found {', '.join(sorted(ranges))}")
    if not takes_days:
        raise ConfigError(
            f"{value!r}: expected one string, found {{{min(ranges)}}}, which stands for several; a range of "
            "days is for `path` of a table, or for an item of a list"
        )
    first, last = (_day(word, day) for word in ranges.pop().split(".."))
    if not 0 <= (last - first).days < _MAX_DAYS:
        raise ConfigError(f"{value!r}: expected 1 to {_MAX_DAYS} days, found {first} to {last}")
    days = (first + timedelta(number) for number in range((last - first).days + 1))
    return [_with_days(value, day, previous, of_range) for of_range in days]


def _with_days(text: str, day: date, previous: date | None, of_range: date) -> str:
    """Fill the placeholders of one string; those of a range with one of its days."""

    def filled(place: re.Match[str]) -> str:
        if place[1] == "previous_date":
            chosen = previous
        else:
            chosen = of_range if ".." in place[1] else _day(place[1], day)
        return chosen.strftime(place[2] or _ISO) if chosen else ""

    return _PLACE.sub(filled, text)


def _day(word: str, day: date) -> date:
    try:
        return day + timedelta(int(word.removeprefix("date") or 0))
    except OverflowError as error:
        raise ConfigError(f"{{{word}}}: expected a day of a year from 1 to 9999") from error


def _text(raw: Mapping[str, Any]) -> str:
    return json.dumps(raw, default=str, skipkeys=True)


def _split(output_template: str) -> tuple[str, str, str]:
    """Return the folder above the date, the form of the folders that show the date, and the path below."""
    places = list(_DATE.finditer(output_template))
    if len(places) != 1 or output_template.count("{") != 1:
        raise ConfigError(
            "output: expected {date} once, so that every date has a folder of its own; "
            f"found {output_template!r}"
        )
    above, form, below = _DATE.split(output_template)
    before, (after, _, rest) = above.rpartition("/")[2], below.partition("/")
    date_format = f"{before.replace('%', '%%')}{form or _ISO}{after.replace('%', '%%')}"
    if _parsed(_SAMPLE.strftime(date_format), date_format) != _SAMPLE:
        raise ConfigError(
            f"output: expected a form of the date that shows year, month and day, as %Y/%m/%d; found {form!r}"
        )
    return storage.parent(f"{above}_"), date_format, rest


def _dated_outputs(output_template: str) -> dict[date, str]:
    base, date_format, rest = _split(output_template)
    paths = {"": base}
    for _ in date_format.split("/"):
        paths = {
            f"{path}/{storage.name(entry.uri)}": entry.uri
            for path, folder in paths.items()
            for entry in storage.list_dir(folder)
            if entry.is_dir
        }
    days = ((_parsed(path[1:], date_format), uri) for path, uri in paths.items())
    return {day: storage.join(uri, rest) if rest else uri for day, uri in days if day}


def _parsed(path: str, date_format: str) -> date | None:
    """Return the date of a path; of a form that repeats itself, as %Y/%m/%Y-%m-%d, by its last folders."""
    for above in range(date_format.count("/") + 1):
        with suppress(ValueError, re.error):  # strptime refuses a form that repeats itself by an re.error
            text, form = (whole.split("/", above)[-1] for whole in (path, date_format))
            day = datetime.strptime(text, form).date()
            if day.strftime(date_format) == path:
                return day
    return None


def _recorded_schedule(output: str) -> dict[str, Any]:
    uri = storage.join(output, RECORD)
    content = read_record(uri)
    try:
        schedule = content["config"]["schedule"] if content is not None else {}
    except (KeyError, TypeError) as error:
        raise FormatError(f"{uri}: expected run.json of a run with --date: {error}; move it away") from error
    return schedule if isinstance(schedule, dict) else {}


def _delete(output_template: str, day: date, output: str) -> None:
    for entry in storage.list_dir(output, recursive=True):
        if entry.is_dir and storage.is_moved_aside(entry.uri):
            raise LockedError(f"it holds {entry.uri}, which only you delete")
    retired = storage.temporary_sibling(storage.join(_split(output_template)[0], str(day)), "retired")
    with lock.held(whole=[output]) as claim:
        marker, taken = (storage.join(output, name) for name in (storage.MARKER, _TAKEN))
        if storage.exists(marker):
            storage.move(marker, taken)  # from now on no run chooses it as its previous date
        elif not storage.exists(taken):
            raise LockedError("another run has just retired it")
        try:
            if str(day) in _needed(_dated_outputs(output_template)):
                raise LockedError("a run has begun to continue from it")
            claim.check()
            storage.move(output, retired)
        except BaseException:
            with suppress(GraphMillError):  # the first error matters
                claim.check()
                storage.move(taken, marker)
            raise
    storage.delete(retired)
    log.info("schedule: %s is retired", output)
