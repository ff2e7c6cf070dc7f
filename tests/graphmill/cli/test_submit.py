"""Commands as a user types them: scripts, bundled jobs, exit codes, signals."""

import os
import re
import signal
import subprocess
import textwrap
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest

from graphmill.checkpoints import pbg
from graphmill.cli.options import CONF_VARIABLE, MASTER_VARIABLE
from graphmill.errors import ConfigError
from graphmill.storage import hdfs
from tests.commands import Submit
from tests.forked import Forks
from tests.graphmill.smallest import write_conf
from tests.processes import DASK_SUBMIT, SLEEPER, alive, heed_sigint
from tests.waiting import wait_until

SCRIPT = """
    import os, sys
    from distributed import get_client
    client = get_client()
    print("sum", client.submit(sum, [1, 2, 3]).result(), sys.argv[1:], os.environ.get("GRAPHMILL_CONF"))
    sys.exit(int(sys.argv[1]))
"""


def test_a_script_gets_its_arguments_the_cluster_and_its_exit_code(tmp_path: Path, forked: Forks) -> None:
    (tmp_path / "mine.py").write_text(textwrap.dedent(SCRIPT))
    write_conf(tmp_path, cluster={"master": "local[1]"})
    conf = str(tmp_path / "c.yaml")
    done = forked("dask-submit", "--conf", conf, "mine.py", "7", "--flag", cwd=tmp_path, code=7)
    assert done.stdout.split() == ["sum", "6", "['7',", "'--flag']", conf]


def test_the_environment_names_a_script_s_cluster_too(tmp_path, monkeypatch, submit):
    (tmp_path / "mine.py").write_text("print('ran')")
    write_conf(tmp_path, cluster={"master": "spark://y"})
    for master, conf in (("spark://x", ""), ("", "c.yaml")):
        monkeypatch.setenv(MASTER_VARIABLE, master)
        monkeypatch.setenv(CONF_VARIABLE, conf)
        said = submit("mine.py")
        assert f"--master {master or 'spark://y'}: expected local" in said.err
        assert (said.code, said.out) == (2, "")


@pytest.mark.usefixtures("graphmill_command")
def test_a_bundled_job_goes_before_a_file_that_is_not_named_as_one(tmp_path, submit, caplog):
    (tmp_path / "etl.py").write_text("print('my own etl')")
    helped = submit("etl.py", "--help")
    assert (helped.code, "Usage: etl.py" in helped.out) == (0, True)
    assert "the file etl.py here is meant by ./etl.py" in caplog.text
    caplog.clear()
    assert submit("./etl.py")[:2] == (0, "my own etl\n")
    assert "bundled" not in caplog.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["elt.py"], "no bundled job of that name; did you mean 'etl.py'?"),
        (["etl.py", "--conf", "none.yaml"], "none.yaml"),
        (["etl.py", "--conf", "c.yaml", "--set", "dimension=x"], "dimension"),
        (["etl.py", "--colour"], "No such option"),
        (["--colour", "etl.py"], "No such option"),
        (["--quiet", "--set", "dimension=x", "etl.py", "--conf", "c.yaml"], "dimension"),
        (["--master", "spark://x", "etl.py", "--conf", "c.yaml"], "--master spark://x: expected local"),
    ],
)
def test_bad_input_exits_with_2_and_one_clear_message(tmp_path, submit, arguments, message):
    write_conf(tmp_path)
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    said = submit(*arguments)
    assert (said.code, message in said.err, "Traceback" in said.err) == (2, True, False), said.err


@pytest.mark.usefixtures("graphmill_command")
@pytest.mark.parametrize(
    ("script", "message"),
    [("1 / 0", "ZeroDivisionError"), ("import sys; sys.exit('no [input]: give it')", "no [input]: give")],
)
def test_a_script_that_fails_exits_with_1(tmp_path: Path, submit: Submit, script: str, message: str) -> None:
    (tmp_path / "bad.py").write_text(script)
    code, _, told = submit("bad.py")
    assert (code, message in told) == (1, True), told
    assert ("Traceback" in told) == ("ZeroDivision" in told)


def submitted(folder: Path, script: str, num_workers: int, **options: Any) -> subprocess.Popen[str]:
    """A script with worker processes, in a process group of its own."""
    words = [DASK_SUBMIT, "--master", f"local[{num_workers}]", script]
    of_its_own = {"start_new_session": True, "preexec_fn": heed_sigint}
    return subprocess.Popen(words, cwd=folder, text=True, **of_its_own, **options)


def send(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """A terminal sends SIGINT to the whole group."""
    (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_a_signal_ends_everything_that_was_started(tmp_path: Path, number: signal.Signals, code: int) -> None:
    (tmp_path / "sleeper.py").write_text(textwrap.dedent(SLEEPER))
    process = submitted(tmp_path, "sleeper.py", 2, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    workers = [int(word) for word in process.stdout.readline().split()[1:]]
    assert len(workers) == 2
    send(process, number)
    process.communicate(timeout=600)
    assert process.returncode == code
    wait_until(lambda: not any(alive(pid) for pid in workers))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "expected"),
    [(signal.SIGINT, 130, "\nerror: stopped by Ctrl-C\n"), (signal.SIGTERM, 143, "")],
)
def test_a_signal_while_workers_start_is_told_in_one_line(tmp_path, number, code, expected):
    (tmp_path / "idle.py").touch()
    process = submitted(tmp_path, "idle.py", 1, stderr=subprocess.PIPE)
    started = psutil.Process(process.pid).children
    wait_until(lambda: len(started()) > 1)  # the first helps Python's multiprocessing
    send(process, number)
    _, told = process.communicate(timeout=600)
    assert (process.returncode, told) == (code, expected)


@pytest.mark.slow
def test_ctrl_c_says_how_to_go_on_and_that_is_true(tmp_path: Path, forked: Forks) -> None:
    (tmp_path / "t.csv").write_text("x,y\n" + "".join(f"{n},{n + 1}\n" for n in range(500)))
    write_conf(tmp_path)
    words = ["dask-submit", "pipeline.py", "--conf", "c.yaml", "--set", f"input={tmp_path}"]
    words += ["--set", "evaluate.split=train", "--set", "train.commit_interval_s=0"]
    process = forked.start(*words, "--set", "num_epochs=100000", cwd=tmp_path)
    wait_until(lambda: pbg.read_version(str(tmp_path / "o/checkpoint")) > 1)
    process.send(signal.SIGINT)
    ended = process.wait(130)
    assert "cluster: local, in this process" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stderr.splitlines()[-1] == "error: stopped by Ctrl-C; run the same command to go on"
    version = pbg.read_version(str(tmp_path / "o/checkpoint"))
    done = forked(*words, "--set", f"num_epochs={version + 1}", cwd=tmp_path)
    assert "etl: skipped, unchanged since" in done.stderr
    assert f"resuming version {version} " in done.stderr


@pytest.mark.parametrize("script", ["pipeline.py", "train.py"])
def test_a_missing_conf_is_told(script: str, monkeypatch: pytest.MonkeyPatch, submit: Submit) -> None:
    monkeypatch.delenv(CONF_VARIABLE, raising=False)
    for options in ([], ["--set", "output=o"]):
        said = submit(script, *options)
        assert re.match(r"error: --conf: missing; .*--conf graphmill:triples\.yaml", said.err)
        assert said.code == 2


@pytest.mark.parametrize("words", [["remap.py"], ["pipeline.py"], ["pipeline.py", "--date", "2026-11-20"]])
def test_the_driver_of_the_configuration_opens_the_first_path_on_hdfs(words, tmp_path, monkeypatch, submit):
    def connect(uri: str) -> NoReturn:
        raise ConfigError(f"connected with {os.environ.get(hdfs.DRIVER_VARIABLE)}")

    monkeypatch.setattr(hdfs, "connect", connect)
    monkeypatch.delenv(hdfs.DRIVER_VARIABLE, raising=False)
    write_conf(tmp_path, output=f"hdfs://nowhere:1/{'{date}' if '--date' in words else 'o'}")
    (tmp_path / "t.csv").write_text("x,y\n1,2\n")
    said = submit(*words, "--conf", "c.yaml", "--set", "cluster.hdfs_driver=libhdfs")
    assert (said.code, "connected with libhdfs" in said.err) == (2, True), said.err
    assert hdfs.DRIVER_VARIABLE not in os.environ
