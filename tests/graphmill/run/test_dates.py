"""Dates in a configuration, the previous date, deletion of old dates."""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from graphmill import storage
from graphmill.config.sections.etl import EtlConfig, TableConfig
from graphmill.errors import AccessError, ConfigError, LockedError
from graphmill.run import dates, lock
from tests.forked import Forks
from tests.graphmill.run.test_lock import HOLDER
from tests.graphmill.smallest import GRAPH
from tests.waiting import wait_until

TABLE = {"lhs": "l", "rhs": "r", "relation": "buys"}
DAY = date(2026, 11, 20)

NO_DAY = "output: expected a form of the date that shows year, month and day"


def conf(folder: Path, **settings: Any) -> str:
    path = folder / "daily.yaml"
    path.write_text(yaml.safe_dump(GRAPH | settings))
    return str(path)


def finish(output: str, previous: str | None = None, *, whole: bool = True, done: bool = True) -> None:
    """What a run with --date leaves."""
    run = {"config": {"schedule": {"previous_date": previous}}, "stages": {}}
    storage.write_text(f"{output}/run.json", json.dumps(run))
    for folder in ("entities", "checkpoint", "embeddings")[: 3 if whole else 2]:
        storage.write_marker(f"{output}/{folder}", {})
    if done:
        storage.write_marker(output, {})


@contextmanager
def at_work(forked: Forks, *outputs: str) -> Iterator[None]:
    """Another process holds the locks of these outputs; afterwards it is dead, and they are still there."""
    holders = [forked.start("python", "-c", HOLDER, each) for each in outputs]
    try:
        for each in holders:
            wait_until(lambda each=each: each.read("stdout") == "held\n")
        yield
    finally:
        for each in holders:
            each.send(signal.SIGKILL)
            each.wait(-signal.SIGKILL)


def entry(**table: Any) -> dict[str, Any]:
    return {"output": "out/{date}", "etl": {"tables": [TABLE | table]}}


def filled(folder: Path, **table: Any) -> TableConfig:
    """A table as a run for DAY gets it."""
    return dates.load(conf(folder, **entry(**table)), (), DAY).section(EtlConfig).tables[0]


@given(back=st.integers(0, 40), length=st.integers(0, 40))
def test_a_window_of_days_is_one_path_a_day(tmp_path: Path, back: int, length: int) -> None:
    first, last = back + length, back
    path = f"in/{{date-{first}..date-{last}:%Y/%m}}/day={{date-{first}..date-{last}}}/*.csv"
    found = filled(tmp_path, path=path)
    days = [DAY - timedelta(number) for number in range(first, last - 1, -1)]
    assert list(found.path) == [f"in/{day:%Y/%m}/day={day}/*.csv" for day in days]


def test_days_in_filters_and_in_lists(tmp_path: Path) -> None:
    conditions = [["day", ">=", "{date-29}"], ["d", "in", ["{date..date+1:%m%d}"]]]
    found = filled(tmp_path, path=["a/{date-1..date}", "b/{date-1}"], filters=conditions)
    assert found.path == ("a/2026-11-19", "a/2026-11-20", "b/2026-11-19")
    assert found.filters == ((("day", ">=", "2026-10-22"), ("d", "in", ("1120", "1121"))),)


def test_dates_are_filled_in_everywhere(root: str, tmp_path: Path) -> None:
    path = conf(
        tmp_path,
        output=f"{root}/run-{{date:%Y%m%d}}-v1",
        init_path=f"{root}/run-{{previous_date:%Y%m%d}}-v1/checkpoint",
        etl={"tables": [TABLE | {"path": ["clicks/day={date}/*.parquet", "x/{previous_date}"]}]},
        schedule={"keep": 3},
    )
    first = dates.load(path, (), DAY)  # starts from nothing
    assert (first.init_path, first.schedule.previous_date) == (None, None)
    assert first.model_dump()["etl"]["tables"][0]["path"] == ["clicks/day=2026-11-20/*.parquet"]

    finish(f"{root}/run-20261117-v1")
    finish(f"{root}/run-20261118-v1", "2026-11-17")
    finish(f"{root}/run-20261119-v1", "2026-11-18", done=False)  # failed: nobody goes on from it
    finish(f"{root}/run-20261121-v1", "2026-11-18")  # later
    finish(f"{root}/run-2026-v1")  # no date of this form
    settings = dates.load(path, ("etl.previous_entity_path=x/{previous_date}/entities",), DAY)
    assert settings.output == f"{root}/run-20261120-v1"
    assert settings.init_path == f"{root}/run-20261118-v1/checkpoint"
    recorded = settings.model_dump()
    assert recorded["etl"]["tables"][0]["path"] == ["clicks/day=2026-11-20/*.parquet", "x/2026-11-18"]
    assert recorded["etl"]["previous_entity_path"] == "x/2026-11-18/entities"
    assert recorded["schedule"] == {"keep": 3, "date": "2026-11-20", "previous_date": "2026-11-18"}


def test_a_rerun_goes_on_from_where_the_first_run_did(root: str, tmp_path: Path) -> None:
    path = conf(tmp_path, output=f"{root}/{{date}}")
    finish(f"{root}/2026-11-17")
    finish(f"{root}/2026-11-20", "2026-11-17", done=False)
    finish(f"{root}/2026-11-18", "2026-11-17")  # a date that was caught up on meanwhile
    assert dates.load(path, (), DAY).schedule.previous_date == "2026-11-17"
    finish(f"{root}/2026-11-20", "2026-11-17")
    assert not dates.is_finished(dates.load(path, (), DAY))
    storage.delete(f"{root}/2026-11-17")
    assert dates.is_finished(dates.load(path, (), DAY))  # its predecessor is gone: it stays as it is
    storage.delete_marker(f"{root}/2026-11-20")
    assert dates.load(path, (), DAY).schedule.previous_date == "2026-11-18"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (entry(path="{date..date-1}"), "expected 1 to 10000 days, found 2026-11-20 to 2026-11-19"),
        (entry(path="{date-1..date}/{date-2..date}"), "one range of days, found date-1..date, date-2..date"),
        (entry(path="{date-99999999}"), "expected a day of a year from 1 to 9999"),
        (entry(path="x", split="{date-1..date}"), r"found \{date-1..date\}, which stands for several"),
        ({"entity_path": "e"}, "output: --date needs it"),
        ({"output": "out/{date-1}"}, r"output: expected \{date\} once"),
        ({"output": "out/{previous_date}"}, r"output: expected \{date\} once"),
        ({"output": "out/{date:%Y/%m}"}, NO_DAY),
        ({"output": "out/{date:%-d}"}, NO_DAY),
        ({"output": "out/{date}", "schedule": [14]}, "schedule: input should be a valid dictionary"),
    ],
)
def test_settings_that_fit_no_date(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dates.load(conf(tmp_path, **settings), (), DAY)


def test_a_place_for_a_date_without_a_date() -> None:
    with pytest.raises(ConfigError, match=r"\{date:%Y\}: .* give --date"):
        dates.refuse_places({"etl": {"tables": [{"path": "x/{date:%Y}"}]}})
    assert dates.refuse_places({"a": "{other}"}) == {"a": "{other}"}
    odd = {"etl": {date(2026, 1, 1): "YAML's own idea of a date"}}
    assert dates.refuse_places(odd) == odd  # what is wrong with it, others say better


def test_the_folder_that_is_searched_for_dates() -> None:
    bases = {"hdfs:///{date}": "hdfs:///", "hdfs://nn/{date}": "hdfs://nn", "/{date}": "/", "{date}": "."}
    assert {template: dates._split(template)[0] for template in bases} == bases


def chain(tmp_path: Path, root: str) -> str:
    return conf(tmp_path, output=f"{root}/{{date}}", init_path=f"{root}/{{previous_date}}/checkpoint")


def previous(path: str) -> Any:
    return dates.load(path, (), DAY).schedule.previous_date


@pytest.mark.slow
def test_a_date_does_not_start_before_an_earlier_one_that_is_at_work(root, tmp_path, caplog, forked):
    caplog.set_level("INFO", "graphmill")
    path = chain(tmp_path, root)
    finish(f"{root}/2026-11-17")
    with at_work(forked, f"{root}/2026-11-15", f"{root}/2026-11-19"):
        message = r"2026-11-19: .*process \d+.* and 2026-11-20 would continue from it; try again later"
        with pytest.raises(LockedError, match=message):
            previous(path)
        alone = conf(tmp_path, output=f"{root}/{{date}}")  # no chain
        assert previous(alone) == "2026-11-17"
    chain(tmp_path, root)
    with at_work(forked, f"{root}/2026-11-15", f"{root}/2026-11-21"):  # neither comes into question
        assert previous(path) == "2026-11-17"
    assert "2026-11-19 is not finished and no run works on it; it is skipped" in caplog.text
    assert "2026-11-15" not in caplog.text
    with at_work(forked, f"{root}/2026-11-17"), pytest.raises(LockedError, match="2026-11-17: "):  # made anew
        previous(path)


def test_a_rerun_does_not_wait_for_what_it_does_not_go_on_from(root, tmp_path, forked):
    path = chain(tmp_path, root)
    finish(f"{root}/2026-11-17")
    finish(f"{root}/2026-11-20", "2026-11-17", done=False)
    with at_work(forked, f"{root}/2026-11-19"):
        assert previous(path) == "2026-11-17"
    with at_work(forked, f"{root}/2026-11-17"), pytest.raises(LockedError):
        previous(path)


def test_what_a_date_goes_on_from_is_recorded_before_it_is_read(root: str, tmp_path: Path) -> None:
    path = chain(tmp_path, root)
    finish(f"{root}/2026-11-19")
    settings = dates.load(path, (), DAY)
    template = f"{root}/{{date}}"

    def save() -> None:
        assert storage.read_marker(f"{root}/2026-11-19") is not None
        finish(f"{root}/2026-11-20", "2026-11-19", done=False)
        storage.delete_marker(f"{root}/2026-11-19")  # who retires it has not seen that yet

    with pytest.raises(LockedError, match="2026-11-19: this run was to continue from this date"):
        dates.hold_previous(settings, template, save)
    finish(f"{root}/2026-11-19")
    dates.hold_previous(settings, template, lambda: pytest.fail("it is recorded already"))


DAYS = [f"2026-11-{day:02d}" for day in range(10, 20)]


@pytest.mark.slow
def test_the_newest_dates_stay(root: str) -> None:
    for before, day in zip([None, *DAYS], DAYS, strict=False):
        finish(f"{root}/{day}", before)
    assert dates.retire(f"{root}/{{date}}", 3) == [f"{root}/{day}" for day in DAYS[:7]]
    assert [storage.name(each.uri) for each in storage.list_dir(root)] == DAYS[7:]
    assert storage.list_hidden(root) == []
    assert dates.retire(f"{root}/{{date}}", 3) == []


@pytest.mark.parametrize("form", ["%Y/%m/%d", "%Y/%m/%Y-%m-%d", "%Y/%Y-%m/%d"])
def test_a_date_of_several_folders(root: str, form: str, tmp_path: Path) -> None:
    template = f"{root}/run-{{date:{form}}}-v1/shop"
    days = [DAY - timedelta(number) for number in (60, 2, 1)]
    outputs = [dates._filled(template, day, None) for day in days]
    for output, before in zip(outputs, [None, *map(str, days)], strict=False):
        finish(output, before)
    assert dates.load(conf(tmp_path, output=template), (), DAY).schedule.previous_date == "2026-11-19"
    assert dates.retire(template, 1) == outputs[:2]
    assert storage.exists(outputs[2])


def test_a_date_without_enough_complete_successors_stays(root: str) -> None:
    for day in DAYS[:4]:
        finish(f"{root}/{day}", whole=False)
    assert dates.retire(f"{root}/{{date}}", 1) == []
    finish(f"{root}/{DAYS[4]}", DAYS[1], done=False)  # is to continue from the second
    finish(f"{root}/{DAYS[5]}")
    with lock.held(f"{root}/{DAYS[3]}"):  # somebody works on that one
        assert dates.retire(f"{root}/{{date}}", 1) == [f"{root}/{DAYS[0]}", f"{root}/{DAYS[2]}"]


def test_dates_that_were_caught_up_on_stay_until_a_newer_one_has_run(root, caplog):
    """Two old dates are asked for, one after the other: the second run does not delete the first."""
    for day in (*DAYS[:2], *DAYS[4:6]):
        finish(f"{root}/{day}")
    with caplog.at_level("WARNING", "graphmill"):
        assert dates.retire(f"{root}/{{date}}", 2, own=DAYS[1]) == []
    assert f"{DAYS[1]} is older than the 2 dates to keep: a newer run will delete it" in caplog.text
    assert dates.retire(f"{root}/{{date}}", 2, own=DAYS[5]) == [f"{root}/{day}" for day in DAYS[:2]]


def test_a_date_that_holds_what_was_moved_aside_stays(root: str, caplog: pytest.LogCaptureFixture) -> None:
    """Only the user deletes a checkpoint that another one has taken the place of."""
    for day in DAYS[:4]:
        finish(f"{root}/{day}")
    storage.write_text(f"{root}/{DAYS[0]}/checkpoint.stale-1/checkpoint_version.txt", "3")
    storage.write_text(f"{root}/{DAYS[1]}/checkpoint/epoch_2.stale-1/checkpoint_version.txt", "2")
    with caplog.at_level("WARNING", "graphmill"):
        assert dates.retire(f"{root}/{{date}}", 1) == [f"{root}/{DAYS[2]}"]
    assert f"{DAYS[0]} stays: it holds {root}/{DAYS[0]}/checkpoint.stale-1" in caplog.text
    assert f"{DAYS[1]} stays: it holds {root}/{DAYS[1]}/checkpoint/epoch_2.stale-1" in caplog.text


def test_what_a_run_at_work_has_gone_on_from_stays(root: str, forked: Forks) -> None:
    for before, day in zip([None, *DAYS[:3]], DAYS[:4], strict=True):
        finish(f"{root}/{day}", before)
    with at_work(forked, f"{root}/{DAYS[2]}"):  # a rerun of one that is finished
        assert dates.retire(f"{root}/{{date}}", 1) == [f"{root}/{DAYS[0]}"]
    of_a_killed_command = f"{root}/.2026-11-01.retired-0123/embeddings/part-0.parquet"
    storage.write_text(of_a_killed_command, "x")
    assert dates.retire(f"{root}/{{date}}", 1) == [f"{root}/{DAYS[1]}", f"{root}/{DAYS[2]}"]
    assert storage.list_hidden(root) == []
    storage.write_text(of_a_killed_command, "x")
    dates.retire(f"{root}/{{date}}/run", 1)  # where dates have folders
    assert storage.list_hidden(root) == []


def test_what_a_run_begins_to_go_on_from_while_it_is_retired_stays(root, monkeypatch):
    for day in DAYS[:2]:
        finish(f"{root}/{day}")
    move = storage.move

    def begin(source: str, target: str) -> None:
        if source.endswith("_SUCCESS"):
            finish(f"{root}/{DAYS[3]}", DAYS[0], done=False)
        move(source, target)

    monkeypatch.setattr(storage, "move", begin)
    assert dates.retire(f"{root}/{{date}}", 1) == []
    assert storage.read_marker(f"{root}/{DAYS[0]}") == {}
    assert storage.list_hidden(root) == []


def test_a_date_that_cannot_be_retired_stays_whole(root, monkeypatch, caplog):
    """The others go; the run that retires them has its own date, and does not fail."""
    for day in DAYS[:4]:
        finish(f"{root}/{day}")
    move, delete = storage.move, storage.delete

    def refuse(first: str, *others: str) -> None:
        if first.endswith((DAYS[0], ".retired-0123")):
            raise AccessError(f"{first}: Permission denied")
        (move if others else delete)(first, *others)

    storage.write_text(f"{root}/.2026-11-01.retired-0123/part-0.parquet", "x")  # another user's
    monkeypatch.setattr(storage, "move", refuse)
    monkeypatch.setattr(storage, "delete", refuse)
    with caplog.at_level("WARNING", "graphmill"):
        assert dates.retire(f"{root}/{{date}}", 1) == [f"{root}/{DAYS[1]}", f"{root}/{DAYS[2]}"]
    assert storage.read_marker(f"{root}/{DAYS[0]}") == {}
    assert f"{DAYS[0]} stays: {root}/{DAYS[0]}: Permission denied" in caplog.text
    assert ".2026-11-01.retired-0123: Permission denied" in caplog.text
    storage.write_text(f"{root}/{DAYS[1]}/run.json", "{")
    assert dates.retire(f"{root}/{{date}}", 1) == []
    assert f"old dates stay: {root}/{DAYS[1]}/run.json: expected a JSON object" in caplog.text


RETIRE = """
import sys
from graphmill.run import dates
from tests.forked import die_before
die_before(int(sys.argv[2]))
dates.retire(sys.argv[1], 1)
"""


@pytest.mark.slow
@pytest.mark.parametrize("change", range(6))
def test_a_deletion_that_was_killed_is_finished_by_the_next_run(
    tmp_path: Path, forked: Forks, change: int
) -> None:
    """Also of the last date in the folder of its month, which no finished date names any more."""
    template, (old, new) = f"{tmp_path}/{{date:%Y/%m/%d}}", ("2026/10/31", "2026/11/01")
    for day in (old, new):
        finish(f"{tmp_path}/{day}")
    forked("python", "-c", RETIRE, template, change, code=-signal.SIGKILL)
    dates.retire(template, 1)
    assert list(tmp_path.rglob("run.json")) == [tmp_path / new / "run.json"]


@given(st.dates(date(1990, 1, 1)), st.sampled_from([None, "%Y%m%d", "%Y.%m.%d", "%d-%m-%Y"]))
def test_a_folder_s_name_gives_its_date_back(day: date, form: str | None) -> None:
    place = "{date}" if form is None else f"{{date:{form}}}"
    assert dates._parsed(dates._filled(place, day, None), form or "%Y-%m-%d") == day
