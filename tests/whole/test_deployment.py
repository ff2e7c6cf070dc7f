"""What is shipped for schedulers and containers, tried as far as it goes without them."""

import ast
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import xml.etree.ElementTree as ET
import zipfile
from datetime import date
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from distributed.cli import dask_scheduler, dask_worker

import graphmill
from graphmill.cli import pipeline, submit
from graphmill.config.sections.cluster import ClusterConfig
from graphmill.config.sections.etl import EtlConfig
from graphmill.errors import BadInputError, DriftError
from graphmill.run import dates
from tests import REPOSITORY
from tests.graphmill.smallest import write_conf
from tests.processes import completed, executable

SCHEDULE = REPOSITORY / "conf" / "schedule"
HADOLINT = Path(sys.executable).with_name("hadolint")


def value_of(name: str) -> ast.expr:
    """The value of a name of Airflow's DAG."""
    body = ast.parse((SCHEDULE / "airflow_dag.py").read_text()).body
    assigned = (node for node in body if isinstance(node, ast.Assign))
    (value,) = [node.value for node in assigned if ast.unparse(node.targets[0]) == name]
    return value


def airflow_command() -> list[str]:
    words = eval(ast.unparse(value_of("COMMAND")), {"__builtins__": {}})
    filled = [word.replace("{{ ds }}", "2026-11-20") for word in words]
    assert "{{" not in "".join(filled)
    return filled


def oozie_command() -> list[str]:
    root = ET.parse(SCHEDULE / "oozie_workflow.xml").getroot()
    flow, shell = "{uri:oozie:workflow:1.0}", "{uri:oozie:shell-action:1.0}"
    nodes = {each.get("name") for each in root if each.get("name")}
    targets = [
        each.get("to") for each in root.iter() if each.tag in {f"{flow}{t}" for t in ("start", "ok", "error")}
    ]
    assert set(targets) <= nodes
    action = root.find(f"{flow}action/{shell}shell")
    order = [each.tag.removeprefix(shell) for each in action]
    schema = ["resource-manager", "name-node", "exec", "argument", "env-var"]  # of shell-action-1.0.xsd
    assert order == sorted(order, key=schema.index)
    words = [action.findtext(f"{shell}exec"), *(each.text for each in action.iter(f"{shell}argument"))]
    return [str(word).replace("${day}", "2026-11-20").replace("${environment}", "/opt/x") for word in words]


def systemd_command() -> list[str]:
    (line,) = re.findall(r"^ExecStart=(.*)$", (SCHEDULE / "graphmill-shop.service").read_text(), re.MULTILINE)
    bash, option, script = shlex.split(line)
    assert (bash, option) == ("/bin/bash", "-c")
    return words_of(script.replace("$$", "$").replace("%%", "%").removeprefix("exec "))


def cron_command() -> list[str]:
    (line,) = re.findall(r"^\d+ \d+ \* \* \* (.*)$", (SCHEDULE / "crontab").read_text(), re.MULTILINE)
    assert not re.search(r"(?<!\\)%", line)  # else cron ends the command there
    return words_of(line.replace("\\%", "%").partition(" >>")[0])


def words_of(command: str) -> list[str]:
    """The words of a command, as the shell makes them."""
    return completed("bash", "-c", f"printf '%s\\n' {command}").stdout.splitlines()


@pytest.mark.parametrize("source", [airflow_command, oozie_command, systemd_command, cron_command])
def test_a_schedule_s_command_is_one_that_dask_submit_takes(source: Any) -> None:
    words = source()
    assert words[0].endswith("dask-submit")
    given = submit.command.make_context("dask-submit", words[1:]).params
    assert (given["master"], given["script"]) == ("yarn", "pipeline.py")
    with pipeline.command.make_context("pipeline.py", list(given["arguments"])) as context:
        assert context.params["conf"] == "hdfs:///conf/shop/daily.yaml"
        assert context.params["day"].year >= 2026


@pytest.mark.parametrize(
    "now", ["2026-11-20 02:30", "2026-11-20 23:59", "2026-11-21 00:10", "2026-11-21 01:59"]
)
def test_a_night_that_systemd_starts_again_keeps_its_date(now: str) -> None:
    unit = (SCHEDULE / "graphmill-shop.service").read_text()
    (form,) = re.findall(r'\$\$\(date --date="(.*?)" \+%%F\)', unit)
    assert completed("date", f"--date={now} {form}", "+%F").stdout == "2026-11-19\n"


def test_options_of_dask_submit_are_settings_of_the_cluster() -> None:
    options = [each for each in submit.command.params if isinstance(each, click.Option) and not each.hidden]
    named = {option.name for option in options}
    assert named - set(ClusterConfig.model_fields) == {"conf", "version"}


def test_the_airflow_dag_handles_our_exit_codes() -> None:
    compile((SCHEDULE / "airflow_dag.py").read_text(), "airflow_dag.py", "exec")
    codes = ast.literal_eval(value_of("FOR_A_PERSON"))
    assert codes.keys() == {BadInputError.exit_code, DriftError.exit_code}
    text = (SCHEDULE / "graphmill-shop.service").read_text()
    assert f"RestartPreventExitStatus={' '.join(map(str, codes))}\n" in text


def test_the_airflow_dag_runs_the_day_before_in_any_release() -> None:
    """Airflow 3 takes a cron string for moments: `ds` is then the day of the run, whose tables still grow."""
    tree = ast.parse((SCHEDULE / "airflow_dag.py").read_text())
    words = {each.arg: each.value for each in ast.walk(tree) if isinstance(each, ast.keyword)}
    timetable = words["schedule"]
    assert isinstance(timetable, ast.Call)
    assert ast.unparse(timetable.func) == "CronDataIntervalTimetable"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for name in ("graphmill-shop.service", "graphmill-shop.timer"):
        text = (SCHEDULE / name).read_text().replace("User=graphmill\n", "")  # nobody of that name here
        (tmp_path / name).write_text(text)
    units = [str(path) for path in sorted(tmp_path.iterdir())]
    told = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True)
    ours = [line for line in (told.stdout + told.stderr).splitlines() if "graphmill" in line]
    assert ours == []


def test_the_daily_configuration_is_complete(tmp_path: Path) -> None:
    conf = str(REPOSITORY / "conf" / "daily.yaml")
    settings = dates.load(conf, (f"output={tmp_path}/{{date}}",), date(2026, 11, 20))
    assert settings.init_path is None
    paths = settings.section(EtlConfig).tables[0].path
    assert len(paths) == 30
    assert paths[-1] == "orders/day=2026-11-20/*.parquet"
    assert settings.section(EtlConfig).previous_edge_path is None


# ---- the image


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions, as (name, rest)."""
    text = re.sub(r"^\s*#.*\n", "", (REPOSITORY / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n", " ", text).splitlines()
    return [tuple(line.split(None, 1)) for line in lines if line.strip()]


@pytest.mark.skipif(not HADOLINT.exists(), reason="no hadolint; pip install '.[dev]'")
def test_hadolint_finds_nothing() -> None:
    assert completed(HADOLINT, "Dockerfile", cwd=REPOSITORY).stdout == ""


def test_copied_files_exist_steps_are_scripts_and_the_image_does_not_run_as_root() -> None:
    ignored = (REPOSITORY / ".dockerignore").read_text().split()
    for name, rest in instructions():
        if name == "COPY" and "--from" not in rest:
            for source in [word for word in rest.split()[:-1] if not word.startswith("--")]:
                assert (REPOSITORY / source).exists()
                assert source not in ignored
        if name == "RUN":
            subprocess.run(["bash", "-n", "-c", rest], check=True)
    names = [name for name, _ in instructions()]
    assert dict(instructions())["USER"] == "10001"
    assert names.index("ENTRYPOINT") > names.index("USER")


@pytest.mark.slow
def test_the_install_step_installs_the_commands(tmp_path: Path) -> None:
    """From what is copied, and nothing else, the real step makes an environment with our commands."""
    source = tmp_path / "source"
    source.mkdir()
    steps = instructions()
    build = steps[: [name for name, _ in steps].index("FROM", 2)]
    copied = [word for name, rest in build if name == "COPY" for word in rest.split()[:-1]]
    subprocess.run(["cp", "-r", *copied, source], cwd=REPOSITORY, check=True)
    (step,) = [rest for name, rest in build if name == "RUN" and "/bin/pip" in rest]
    home = tmp_path / "graphmill"
    project = source / "pyproject.toml"  # what it depends on is what these tests run with
    project.write_text(re.sub(r"(?ms)^(dependencies|ssh) = \[.*?\]$", r"\1 = []", project.read_text()))
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", step.replace("/opt/graphmill", str(home))],
        cwd=source,
        env={**os.environ, "EXTRAS": "ssh", "PIP_ARGS": "", "HATCH_BUILD_NO_HOOKS": "true"},
        capture_output=True,
        text=True,
    )
    if "Could not find a version that satisfies the requirement hatchling" in done.stderr:
        pytest.skip("no package registry to fetch the build tool from")
    assert done.returncode == 0, done.stderr
    assert (home / "bin" / "dask-submit").exists()
    (site,) = home.glob("lib/python*/site-packages")
    assert {"graphmill", "etl", "train", "remap"} <= {path.name for path in site.iterdir()}


@pytest.mark.slow
def test_the_license_is_in_the_wheel(wheel: Path) -> None:
    text = (REPOSITORY / "LICENSE").read_bytes()
    assert hashlib.sha256(text).hexdigest().startswith("cfc7749b96f63bd3"), "Apache-2.0, as Apache has it"
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("dist-info/licenses/LICENSE"))
        assert archive.read(name) == text
        metadata = archive.read(name.replace("licenses/LICENSE", "METADATA")).decode()
    assert "License-Expression: Apache-2.0\nLicense-File: LICENSE\n" in metadata


@pytest.mark.slow
def test_the_sdist_has_what_is_listed(tmp_path: Path) -> None:
    completed(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path, cwd=REPOSITORY)
    (path,) = tmp_path.iterdir()
    with tarfile.open(path) as archive:
        found = {name.split("/")[1] for name in archive.getnames()}
    targets = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    listed = {name.strip("/") for name in targets["sdist"]["include"]}
    assert found == listed | {".gitignore", "PKG-INFO", "pyproject.toml"}


@pytest.mark.parametrize(
    ("words", "variables", "code", "found"),
    [
        (["etl.py", "--help"], {}, 0, "dask-submit etl.py --help"),
        (["echo", "dask", "worker"], {}, 0, "dask worker"),
        ([], {"GRAPHMILL_HDFS_DRIVER": "libhdfs"}, 1, "needs a Hadoop"),
    ],
)
def test_the_image_s_entry_point(words, variables, code, found, tmp_path):
    executable(tmp_path / "dask-submit", 'echo dask-submit "$@"')
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", **variables}
    done = completed(REPOSITORY / "docker" / "entrypoint.sh", *words, env=environment, code=code)
    assert found in done.stdout + done.stderr


def test_the_compose_file_s_services() -> None:
    compose = yaml.safe_load((REPOSITORY / "docker" / "compose.yaml").read_text())
    services = compose["services"]
    for service in services.values():
        assert set(service.get("depends_on", {})) <= set(services)
        assert set(service["networks"]) <= set(compose["networks"])
        assert "ports" not in service  # nothing is open to the machine's network
    dask = {"scheduler": dask_scheduler.main, "worker": dask_worker.main}
    for name, command in dask.items():
        first, second, *rest = services[name]["command"]
        assert (first, second) == ("dask", name)
        command.make_context(name, list(rest))
    assert services["submit"]["environment"]["GRAPHMILL_MASTER"] == "tcp://scheduler:8786"


@pytest.mark.slow
def test_a_checkout_on_the_path_runs_without_being_installed(tmp_path: Path) -> None:
    libraries = tmp_path / "libraries"  # those of this environment, without what knows of graphmill
    libraries.mkdir()
    for each in Path(pytest.__file__).parents[1].iterdir():
        if "graphmill" not in each.name:
            (libraries / each.name).symlink_to(each)
    (tmp_path / "t.csv").write_text("a,b\nx,y\n")
    write_conf(tmp_path)

    def run(*words: str) -> str:
        path = {"PYTHONPATH": f"{REPOSITORY}{os.pathsep}{libraries}"}
        return completed(sys.executable, "-S", "-m", *words, env=os.environ | path, cwd=tmp_path).stdout

    run("etl", "--master", "local", "--conf", "c.yaml")
    record = json.loads((tmp_path / "o" / "run.json").read_text())
    assert record["versions"]["graphmill"] == graphmill.__version__
    assert run("graphmill", "--version").endswith(f" {graphmill.__version__}\n")
