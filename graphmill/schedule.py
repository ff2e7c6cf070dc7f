"""One run a date: paths that name it, the run before it, and how long dates are kept.

In every string of a configuration that is loaded for a date

    {date}            the date, as 2026-11-20;      {date:%Y%m%d} as strftime has it
    {previous_date}   the newest earlier date whose run is finished; without one, the string becomes null

    base/2026-11-19/_SUCCESS      `output: base/{date}`: finished
    base/2026-11-20/run.json      config.schedule says which date it is, and which one it goes on from
    base/.2026-11-01.retired-*    being deleted
"""

import json
import logging
import re
from collections.abc import Mapping
from datetime import date, datetime
from typing import Any

from pydantic import Field

from graphmill import config, lock, storage
from graphmill.config import Config, Positive, Section
from graphmill.errors import ConfigError, FormatError, LockedError

_PLACE = re.compile(r"\{(date|previous_date)(?::([^{}]*))?\}")
_DATE = re.compile(r"\{date(?::([^{}]*))?\}")
_ISO = "%Y-%m-%d"
_STAGE_FOLDERS = ("entities", "checkpoint", "embeddings")

log = logging.getLogger("graphmill")


class ScheduleConfig(Section):
    """The section `schedule`."""

    keep: Positive | None = Field(
        None, description="finished dates that are kept; older ones are deleted after a run; all if not set"
    )
    date: str | None = Field(None, description="set by --date")
    previous_date: str | None = Field(None, description="found by --date")


def load(conf_uri: str | None, overrides: tuple[str, ...], day: date) -> Config:
    """The configuration for `day`, with every place for a date filled in.

    Raises:
        ConfigError: as `config.load`; or `output` does not tell dates apart.
    """

    def fill(raw: dict[str, Any]) -> dict[str, Any]:
        output = raw.get("output")
        if not isinstance(output, str):
            raise ConfigError("output: --date needs it, with {date} in it")
        previous = _previous(output, day)
        filled: dict[str, Any] = _filled(raw, day, previous)
        dates = {"date": str(day), "previous_date": str(previous) if previous else None}
        section = raw.get("schedule", {})
        if not isinstance(section, Mapping):
            return filled  # refused with all else that is wrong
        return {**filled, "schedule": {**section, **dates}}

    settings = config.load(conf_uri, overrides, transform=fill)
    settings.section("schedule", ScheduleConfig)
    return settings


def refuse_places(raw: dict[str, Any]) -> dict[str, Any]:
    """`raw`, if it can do without a date.

    Raises:
        ConfigError: it has a place for one.
    """
    if found := _PLACE.search(json.dumps(raw, default=str, skipkeys=True)):
        raise ConfigError(f"{found[0]}: the configuration is for a date; give --date YYYY-MM-DD")
    return raw


def is_finished(settings: Config) -> bool:
    """Whether the date is done and can only stay as it is, since what it went on from is retired."""
    own = settings.section("schedule", ScheduleConfig)
    if own.date is None or settings.output is None or storage.read_marker(settings.output) is None:
        return False
    recorded = _recorded_schedule(settings.output).get("previous_date")
    return recorded is not None and own.previous_date != recorded


def retire(output_template: str, keep: int) -> list[str]:
    """Delete finished dates but the newest `keep`, and never one that has no verified successor.

    Dates that are not finished stay, as do those that an unfinished one goes on from, and those that a run is
    at work on. Returns the URIs of the deleted outputs.
    """
    outputs = _dated_outputs(output_template)
    _finish_deletions(output_template)
    finished = sorted(day for day, uri in outputs.items() if storage.read_marker(uri) is not None)
    verified = [day for day in finished if _is_whole(outputs[day])]
    needed = {
        _recorded_schedule(uri).get("previous_date") for day, uri in outputs.items() if day not in finished
    }
    victims = [day for day in finished if sum(v > day for v in verified) >= keep and str(day) not in needed]
    return [outputs[day] for day in victims if _delete(outputs[day])]


def _previous(output_template: str, day: date) -> date | None:
    outputs = _dated_outputs(output_template)
    earlier = [each for each in outputs if each < day and storage.read_marker(outputs[each]) is not None]
    own = outputs.get(day)
    recorded = _recorded_schedule(own) if own else {}
    if own and "previous_date" in recorded:  # a rerun goes on from where the first run went on from
        before = recorded["previous_date"]
        if before is None:
            return None
        with_text = {str(each): each for each in earlier}
        if before in with_text:
            return with_text[before]
    return max(earlier, default=None)


def _filled(value: Any, day: date, previous: date | None) -> Any:
    if isinstance(value, Mapping):
        return {key: _filled(each, day, previous) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [each for each in (_filled(each, day, previous) for each in value) if each is not None]
    if not isinstance(value, str):
        return value
    if previous is None and "{previous_date" in value:
        return None

    def text(place: re.Match[str]) -> str:
        chosen = day if place[1] == "date" else previous
        return chosen.strftime(place[2] or _ISO) if chosen else ""

    return _PLACE.sub(text, value)


def _split(output_template: str) -> tuple[str, str, str]:
    """`base`, the one component with the date, and what follows it."""
    parts = output_template.split("/")
    numbers = [number for number, part in enumerate(parts) if "{" in part]
    if len(numbers) != 1 or len(_DATE.findall(parts[numbers[0]])) != 1:
        raise ConfigError(
            "output: expected {date} once, so that every date has a folder of its own; "
            f"found {output_template!r}"
        )
    at = numbers[0]
    return storage.parent("/".join(parts[: at + 1])), parts[at], "/".join(parts[at + 1 :])


def _dated_outputs(output_template: str) -> dict[date, str]:
    """The outputs that there are, by date."""
    base, component, rest = _split(output_template)
    place = _DATE.search(component)
    assert place is not None, "_split has looked for it"
    before, after = component[: place.start()], component[place.end() :]
    outputs = {}
    for entry in storage.list_dir(base):
        name = storage.name(entry.uri)
        if entry.is_dir and name.startswith(before) and name.endswith(after):
            middle = name[len(before) : len(name) - len(after)]
            day = _parsed(middle, place[1] or _ISO)
            if day:
                outputs[day] = storage.join(entry.uri, rest) if rest else entry.uri
    return outputs


def _parsed(text: str, form: str) -> date | None:
    try:
        day = datetime.strptime(text, form).date()
    except ValueError:
        return None
    return day if day.strftime(form) == text else None


def _recorded_schedule(output: str) -> dict[str, Any]:
    uri = storage.join(output, "run.json")
    if not storage.exists(uri):
        return {}
    try:
        schedule = storage.read_json(uri)["config"]["schedule"]
    except (FormatError, KeyError, TypeError) as error:
        raise FormatError(f"{uri}: expected run.json of a run with --date: {error}; move it away") from error
    return schedule if isinstance(schedule, dict) else {}


def _is_whole(output: str) -> bool:
    """Whether a finished date could take the place of earlier ones: all that it promises is there."""
    return all(storage.read_marker(storage.join(output, folder)) is not None for folder in _STAGE_FOLDERS)


def _delete(output: str) -> bool:
    try:
        with lock.held(output):
            storage.delete_marker(output)  # from here on it is nobody's predecessor
            retired = storage.temporary_sibling(output, "retired")
            storage.move(output, retired)
    except LockedError as error:
        log.warning("schedule: %s stays: %s", output, error)
        return False
    storage.delete(retired)
    log.info("schedule: %s is retired", output)
    return True


def _finish_deletions(output_template: str) -> None:
    for hidden in storage.list_hidden(_split(output_template)[0]):
        if ".retired-" in storage.name(hidden):
            storage.delete(hidden)
