"""Output of commands: for a terminal of any width, for the log of a batch job, for programs."""

import io
import json
import os
import pty
import re
import subprocess
import time
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console

from graphmill.display import readable, terminal
from graphmill.display.progress import MIN_BAR, Bars, Clock, Tick, displayed, end, show, shown_by
from tests.commands import run_command
from tests.forked import Forks
from tests.graphmill.smallest import write_conf
from tests.logged import messages_of
from tests.processes import DASK_SUBMIT


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    (tmp_path / "t.csv").write_text("a,b\n" + "".join(f"x{n},x{n + 1}\n" for n in range(50)))
    write_conf(tmp_path, input=str(tmp_path), output=str(tmp_path / "out"), cluster={"master": "local[1]"})
    return tmp_path / "c.yaml"


def test_a_batch_gets_lines_and_a_table(conf: Path, forked: Forks) -> None:
    done = forked("dask-submit", "etl.py", "--conf", conf, has_report=True)
    assert re.search(r"^\d\d:\d\d:\d\d I etl: done in", done.stderr, re.M)
    assert re.search(r"^\d\d:\d\d:\d\d I dashboard: http://127\.0\.0\.1:\d+/status$", done.stderr, re.M)
    assert re.search(r"report: .*report\.html", done.stderr)
    assert re.search(r"edges, train\W+50\b", done.stdout)
    assert "\x1b[" not in done.stdout + done.stderr


def test_json_logs_are_json_to_the_last_line(conf: Path, forked: Forks) -> None:
    done = forked("dask-submit", "etl.py", "--conf", conf, "--json-logs")
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert all({"time", "level", "message"} <= line.keys() for line in lines)
    assert [line["edges, train"] for line in lines if "edges, train" in line] == ["50"]
    assert done.stdout == ""


@pytest.mark.slow
def test_a_terminal_gets_bars_and_the_dashboard(conf: Path) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "40"}
    command = [DASK_SUBMIT, "--master", "local", "etl.py", "--conf", str(conf)]
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # how Linux says that the other end is closed
        while chunk := os.read(ours, 65536):
            shown += chunk
    os.close(ours)
    assert process.wait(timeout=600) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    lines = re.split(r"[\r\n]+", text)
    assert any(re.match(r"etl: encode +[━╸╺]{20,} +\d+%", line) for line in lines)
    assert any(re.match(r"done: .*encode", line) for line in lines)
    assert any(re.fullmatch(r"dashboard: http://127\.0\.0\.1:\d+/status\s*", line) for line in lines)
    assert all(len(line) <= 80 for line in lines if not re.match(r"\d\d:\d\d:\d\d |graphmill ", line))
    assert re.search(r"edges, train\W+50\b", text)


@pytest.mark.parametrize(
    ("options", "expected", "trace"),
    [
        ([], r"^error: --set dimension=none: dimension: ", False),
        (["--debug"], r"^error: --set dimension=none: dimension: ", True),
        (["--json-logs"], r'^\{.*"level": "error".*"type": "ConfigError"\}$', False),
    ],
)
def test_an_error_is_one_block(conf, submit, options, expected, trace):
    code, _, told = submit("etl.py", "--conf", conf, "--set", "dimension=none", *options)
    assert (code, "Traceback" in told) == (2, trace)
    assert re.search(expected, told, re.M)
    assert trace or len(told.splitlines()) == 1


def test_a_terminal_that_says_it_has_no_columns_is_written_to(forked: Forks) -> None:
    done = forked("graphmill", "check", "--conf", "none.yaml", COLUMNS="0", code=2)
    assert done.stderr.startswith("error: none.yaml: ")


def test_a_defect_says_that_it_is_one_and_where_and_the_record_has_the_trace(conf, forked):
    program = f"""
import etl.job, sys
from graphmill.cli import exit_codes
from graphmill.cli.etl import command
def broken(config, client, claim): return 1 / 0
etl.job.run = broken
sys.argv[1:] = ["--conf", {str(conf)!r}, "--quiet"]
exit_codes.main(command)
"""
    done = forked("python", "-c", program, has_report=True, code=1)
    assert "error: ZeroDivisionError: division by zero (" in done.stderr
    assert "this is a defect" in done.stderr
    assert "Traceback" not in done.stderr
    record = json.loads((conf.parent / "out" / "run.json").read_text())
    assert "Traceback" in record["stages"]["etl"]["traceback"]
    assert (record["status"], "division by zero" in record["error"]) == ("failed", True)
    page = (conf.parent / "out" / "report.html").read_text()
    assert "The run failed in etl." in page
    assert "ZeroDivisionError: division by zero" in page


@pytest.mark.slow
def test_the_shell_completes_jobs() -> None:
    names = {"_DASK_SUBMIT_COMPLETE": "bash_complete", "COMP_WORDS": "dask-submit pi", "COMP_CWORD": "1"}
    told = subprocess.run([DASK_SUBMIT], env={**os.environ, **names}, capture_output=True, text=True)
    assert "plain,pipeline.py" in told.stdout


def test_quiet_prints_nothing_and_the_command_report(conf, tmp_path, forked, capsys):
    done = forked("dask-submit", "etl.py", "--conf", conf, "--quiet", has_report=True)
    assert (done.stdout, done.stderr) == ("", "")
    output = tmp_path / "out"
    page = output / "report.html"
    before = page.read_text()
    page.unlink()
    run_command("report", output)
    assert capsys.readouterr().out.strip() == str(page)
    assert page.read_text() == before
    run_command("report", output, output, "--output", tmp_path / "both.html")
    assert "2 runs side by side" in (tmp_path / "both.html").read_text()


FIGURES = {"epoch": "3/10", "loss": "0.1234", "mrr": "0.345", "bucket": "12,7"}
TICKS = [
    Tick("remapping a type of entities with a long name 17", 3e5, 1e6, "rows"),
    Tick("training", 4.56e7, 1e8, "edges", FIGURES),
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


@pytest.mark.parametrize("width", [40, 60, 200])
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


def test_lines_of_a_log_leave_out_work_that_ends_at_once(monkeypatch, caplog):
    work = [("short", 0, 0), ("short", 2, 0.5), ("long", 0, 0.5), ("long", 1, 15), ("long", 2, 25.5)]
    work += [("at once", 2, 26), ("late", 2, 29)]
    caplog.set_level("INFO", logger="graphmill")
    with displayed():
        for name, done, now in work:
            monkeypatch.setattr(time, "monotonic", lambda now=now: now)
            show(Tick(name, done, 2, "tasks", {"file": "x"}))
    assert messages_of(caplog) == [
        "long: 1 of 2 tasks, 0.069 tasks/s, 14 s left, file x",
        "long: 2 of 2 tasks, 0.08 tasks/s, file x",
        "late: 2 of 2 tasks, file x",
    ]
    fields = getattr(caplog.records[0], terminal.FIELDS)  # of a line of JSON
    assert fields == {"description": "long", "done": 1, "total": 2, "unit": "tasks", "file": "x"}


def test_a_moment_has_its_date_unless_it_is_today() -> None:
    earlier = datetime.now() - timedelta(days=3)
    assert readable.moment(earlier.timestamp()) == f"{earlier:%Y-%m-%d %H:%M}"
    assert readable.moment(datetime.now().replace(hour=12, minute=34).timestamp()) == "12:34"
