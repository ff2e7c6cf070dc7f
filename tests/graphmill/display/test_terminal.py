"""Output of commands: for a terminal, for the log of a batch job, for programs."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import Forks

DASK_SUBMIT = str(Path(sys.executable).with_name("dask-submit"))
CONF = """
input: {input}
output: {output}
dimension: 2
entities: {{user: {{num_partitions: 1}}}}
relations: [{{name: knows, lhs: user, rhs: user}}]
etl: {{tables: [{{path: edges.csv, lhs: a, rhs: b, relation: knows}}]}}
cluster: {{master: "local[1]"}}
"""


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    (tmp_path / "edges.csv").write_text("a,b\n" + "".join(f"x{n},x{n + 1}\n" for n in range(50)))
    (tmp_path / "conf.yaml").write_text(CONF.format(input=tmp_path, output=tmp_path / "out"))
    return tmp_path / "conf.yaml"


def test_a_batch_gets_lines_and_a_table(conf: Path, forked: Forks) -> None:
    done = forked("dask-submit", "etl.py", "--conf", conf, has_report=True)
    assert done.code == 0, done.stderr
    assert re.search(r"^\d\d:\d\d:\d\d I etl: done in", done.stderr, re.M)
    assert re.search(r"^\d\d:\d\d:\d\d I dashboard: http://127\.0\.0\.1:\d+/status$", done.stderr, re.M)
    assert re.search(r"report: .*report\.html", done.stderr)
    assert re.search(r"edges, train\W+50\b", done.stdout)
    assert "\x1b[" not in done.stdout + done.stderr


def test_json_logs_are_json_to_the_last_line(conf: Path, forked: Forks) -> None:
    done = forked("dask-submit", "etl.py", "--conf", conf, "--json-logs")
    assert done.code == 0, done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert all({"time", "level", "message"} <= line.keys() for line in lines)
    assert [line["edges, train"] for line in lines if "edges, train" in line] == ["50"]
    assert done.stdout == ""


def test_quiet_prints_nothing_on_success(conf: Path, forked: Forks) -> None:
    done = forked("dask-submit", "etl.py", "--conf", conf, "--quiet")
    assert (done.code, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
def test_a_terminal_gets_bars_and_the_dashboard(conf: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [DASK_SUBMIT, "etl.py", "--conf", str(conf)],
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "40"},
    )
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:  # how Linux says that the other end is closed
        pass
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
def test_an_error_is_one_block(
    conf: Path, forked: Forks, options: list[str], expected: str, trace: bool
) -> None:
    done = forked("dask-submit", "etl.py", "--conf", conf, "--set", "dimension=none", *options)
    assert done.code == 2
    assert re.search(expected, done.stderr, re.M)
    assert ("Traceback" in done.stderr) == trace
    lines = [line for line in done.stderr.splitlines() if not line.startswith("graphmill 0.")]
    assert trace or len(lines) == 1


def test_a_defect_says_that_it_is_one_and_where_and_the_record_has_the_trace(
    conf: Path, forked: Forks
) -> None:
    program = f"""
import etl.job, sys
from graphmill.cli import exit_codes
from graphmill.cli.etl import command
def broken(config, client, claim): return 1 / 0
etl.job.run = broken
exit_codes.main(command, ["--conf", {str(conf)!r}, "--quiet"])
"""
    done = forked("python", "-c", program, has_report=True)
    assert done.code == 1
    assert "error: ZeroDivisionError: division by zero (" in done.stderr
    assert "this is a defect" in done.stderr
    assert "Traceback" not in done.stderr
    record = json.loads((conf.parent / "out" / "run.json").read_text())
    assert "Traceback" in record["stages"]["etl"]["traceback"]
    page = (conf.parent / "out" / "report.html").read_text()
    assert "The run failed in etl." in page
    assert "ZeroDivisionError: division by zero" in page


@pytest.mark.slow
def test_the_shell_completes_jobs_and_options(tmp_path: Path) -> None:
    def complete(words: str, position: int) -> str:
        names = {"_DASK_SUBMIT_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(position)}
        return subprocess.run(
            [DASK_SUBMIT], env={**os.environ, **names}, capture_output=True, text=True
        ).stdout

    assert "plain,pipeline.py" in complete("dask-submit pi", 1)
    assert "plain,--master" in complete("dask-submit --ma", 1)


def test_the_command_report(conf: Path, tmp_path: Path, forked: Forks) -> None:
    assert forked("dask-submit", "etl.py", "--conf", conf, "--quiet", has_report=True).code == 0
    page = tmp_path / "out" / "report.html"
    before = page.read_text()
    page.unlink()
    output = tmp_path / "out"
    done = forked("graphmill", "report", output)
    assert done.code == 0, done.stderr
    assert done.stdout.strip() == str(page)
    assert page.read_text() == before
    assert forked("graphmill", "report", output, output, "--output", tmp_path / "both.html").code == 0
    assert "2 runs side by side" in (tmp_path / "both.html").read_text()
