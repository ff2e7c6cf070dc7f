"""--deploy-mode cluster: what the command becomes in the container, and what is refused before."""

import json
from pathlib import Path
from unittest.mock import Mock

import pytest

from graphmill.cli.main import command as graphmill
from graphmill.cli.submit import command as dask_submit
from graphmill.cluster import deploy
from tests.commands import code_of
from tests.graphmill import smallest
from tests.graphmill.ask.predict.world import write_world

GRAPH = smallest.GRAPH | {
    "input": "hdfs:///in",
    "output": "hdfs:///out",
    "etl": smallest.etl_of(["x.parquet", "hdfs:///y"]),
    "cluster": {"master": "yarn", "deploy": "cluster", "yarn_options": {"priority": 5}},
}


@pytest.fixture
def deployed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Mock:
    """Takes a container's words, files and settings; tests/hadoop/test_yarn.py has real containers."""
    monkeypatch.chdir(tmp_path)
    for variable in ("GRAPHMILL_MASTER", "GRAPHMILL_CONF"):
        monkeypatch.setenv(variable, "")  # dask-submit sets them, and they are restored
        monkeypatch.delenv(variable)
    (tmp_path / "plug.py").write_text("")
    (tmp_path / "c.yaml").write_text(json.dumps(GRAPH))
    monkeypatch.setattr(deploy, "run", there := Mock(return_value=7))
    return there


def test_a_stage_gets_its_files_and_options(deployed: Mock, tmp_path: Path) -> None:
    (tmp_path / "valid").mkdir()
    words = ["evaluate", "c.yaml", "--split", "valid", "--unfiltered", "--json", "--num-workers", "9"]
    assert code_of(graphmill, *words, "--set", "train.plugins=[plug.py]", "--yarn-option", "debug") == 7
    (words, files, settings), _ = deployed.call_args
    assert list(files) == ["0/c.yaml", "1/plug.py"]
    assert [Path(path).name for path in files.values()] == ["c.yaml", "plug.py"]
    assert words[:3] == ["-m", "graphmill", "evaluate"]
    assert words[-4:] == ["--split", "valid", "--unfiltered", "--json"]
    place = words.index("--conf") + 1
    assert words[place] == f"{deploy.JOB}/0/c.yaml"
    assert "--set=train.plugins=[job/1/plug.py]" in words
    assert settings.num_workers == 9
    assert settings.yarn_options == {"priority": 5, "debug": True}


def test_a_question_about_a_finished_run_gets_its_words(deployed: Mock, tmp_path: Path) -> None:
    words = ["features", "c.yaml", "hdfs:///t/*.csv", "hdfs:///u", "--column", "a", "--column", "b"]
    words += ["--no-header", "--to", "hdfs:///new", "--checkpoint-version", "3", "--num-workers", "9"]
    words[1] = str(tmp_path / "c.yaml")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("graphmill.cli.in_a_container.is_of_one_machine", lambda _: False)
        assert code_of(graphmill, *words) == 7
    (there, _, settings), _ = deployed.call_args
    assert there[:3] == ["-m", "graphmill", "features"]
    rest = there[3:]
    assert [each for each in rest if not each.startswith("--set=")] == [
        *(words[1], "hdfs:///t/*.csv", "hdfs:///u", "--column", "a", "--column", "b"),
        *("--no-header", "--to", "hdfs:///new"),
    ]
    assert "--set=remap.checkpoint_version=3" in rest
    assert settings.num_workers == 9


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [["evaluate"], ["predict", "--to", "/dev/shm/to"], ["predict", "--deploy-mode", "client", "--to", "/t"]],
)
def test_a_finished_run_does_not_decide_for_the_commands_after_it(deployed, tmp_path, capsys, words):
    graph = GRAPH | {"output": str(tmp_path)}
    (tmp_path / "run.json").write_text(json.dumps({"config": graph, "stages": {}}))
    assert code_of(graphmill, words[0], str(tmp_path), *words[1:], "--master", "local[1]") in (2, 4)
    assert "there is no" in capsys.readouterr().err  # the command begins here, and finds no files
    assert not deployed.called


def test_a_date_and_the_master_are_passed_on(deployed: Mock) -> None:
    words = ["--master", "yarn", "--deploy-mode", "cluster", "pipeline.py", "--conf", "c.yaml"]
    words += ["--date", "2026-11-20", "--output", "hdfs:///out/{date}"]
    assert code_of(dask_submit, *words) == 7
    assert deployed.call_args.args[0][-3:] == ["--date", "2026-11-20", "--master=yarn"]


def test_a_script_gets_its_arguments_and_files(deployed: Mock, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("")
    options = ["--py-files", "plug.py", "--yarn-option", "shell_env=A=b", "--yarn-option", "shell_env=C=d"]
    assert code_of(dask_submit, "--conf", "c.yaml", *options, "mine.py", "7", "--flag") == 7
    (words, files, settings), _ = deployed.call_args
    assert list(files) == ["0/c.yaml", "1/plug.py", "2/mine.py"]
    assert words == [
        *("-m", "graphmill.cli.submit", "--conf", "job/0/c.yaml", "--py-files=job/1/plug.py"),
        *("--yarn-option=shell_env=A=b", "--yarn-option=shell_env=C=d", "./job/2/mine.py", "7", "--flag"),
    ]
    assert settings.yarn_options == {"priority": 5, "shell_env": ("A=b", "C=d")}


OF_A_RUN = [
    ("--set output=/dev/shm/out", "output: /dev/shm/out is on a disk of this machine"),
    ("--set etl.tables[0].path[1]=/dev/shm/y", "etl.tables[0].path[1]: /dev/shm/y is on a disk"),
    ("--set etl.quarantine_path=/dev/shm/bad", "etl.quarantine_path: /dev/shm/bad is on a disk"),
    ("--set train.init_embeddings.a=/dev/shm/v", "train.init_embeddings.a: /dev/shm/v is on a disk"),
    ("--master local", "cluster.deploy: cluster is for --master yarn, found local"),
    ("--py-files none.py", "none.py: there is no such file"),
    ("--yarn-option queue=q", "queue: GraphMill sets this option; use cluster.queue"),
    ("--driver-memory much", "cluster.driver_memory: expected a size as 4GiB, found 'much'"),
]
OF_A_QUESTION = [
    ("--to answers", "--to: "),
    ("--to hdfs:///to --index new", "--index: "),
    ("--to hdfs:///to --ids ids.txt", "--ids: "),
]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        *((f"pipeline --conf c.yaml {words}", message) for words, message in OF_A_RUN),
        *((f"predict c.yaml {words}", message) for words, message in OF_A_QUESTION),
    ],
)
def test_what_no_container_reaches_is_refused(deployed, tmp_path, capsys, words, message):
    (tmp_path / "ids.txt").write_text("a")
    assert code_of(graphmill, *words.split()) == 2
    assert message in capsys.readouterr().err
    assert not deployed.called


def test_a_container_does_not_deploy_again(deployed, monkeypatch, capsys):
    monkeypatch.setenv("GRAPHMILL_DRIVER", "1")
    code_of(graphmill, "pipeline", "--conf", "c.yaml", "--master", "spark://x", "--set", "dimension=none")
    assert "dimension: input should be a valid integer" in capsys.readouterr().err
    assert not deployed.called


def test_a_driver_looks_at_a_question_before_it_asks_for_workers(deployed, monkeypatch, tmp_path, capsys):
    """A run.json brings no options of a cluster; YARN, which is not there, would be another error."""
    write_world(tmp_path / "run")
    monkeypatch.setenv("GRAPHMILL_DRIVER", "1")
    words = ["predict", tmp_path / "run", "--relation", "nothing", "--k", "2", "--to", tmp_path / "to"]
    assert code_of(graphmill, *words, "--master", "yarn", "--num-workers", "1") == 2
    assert "--relation nothing: expected one of likes, follows" in capsys.readouterr().err
    assert not deployed.called


def test_a_cluster_with_kerberos_is_refused(monkeypatch, tmp_path, capsys):
    name, value = "<name>hadoop.security.authentication</name>", "<value>kerberos</value>"
    site = f"<configuration><property>{name}{value}</property></configuration>"
    (tmp_path / "core-site.xml").write_text(site)
    (tmp_path / "c.yaml").write_text(json.dumps(GRAPH))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert code_of(graphmill, "pipeline", "--conf", str(tmp_path / "c.yaml")) == 2
    assert "this cluster uses Kerberos, and a container has no ticket" in capsys.readouterr().err
