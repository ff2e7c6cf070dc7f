"""A run.json brings no code and no cluster: the user of a command names them."""

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

import graphmill
from graphmill import config
from graphmill.cli import main, options
from graphmill.config.sections.cluster import ClusterConfig
from graphmill.errors import ConfigError
from graphmill.library.run import Run
from tests.commands import code_of
from tests.graphmill.smallest import GRAPH

COMPARATOR = """
from graphmill.plugins import COMPARATORS, AbstractComparator
open({mark!r}, "a").close()
@COMPARATORS.register_as({name!r})
class Evil(AbstractComparator): ...
"""
_TO = ("--to", "to")
COMMANDS = (
    ("predict", "RUN", *_TO),
    ("export", "RUN", *_TO),
    ("neighbors", "RUN", "--id", "a"),
    ("features", "RUN", "t.csv", "--column", "id", *_TO),
    ("fold-in", "RUN", "--edges", "t.csv", *_TO),
    *((name, "RUN") for name in ("evaluate", "remap", "train", "etl", "pipeline", "check")),
    ("tune", "--conf", "RUN/run.json", "--minutes", "1", *_TO),
    ("predict", "RUN/run.json", *_TO),
    ("train", "--conf", "RUN/run.json"),
)


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of somebody else, and beside it a file that leaves a mark when it runs."""
    folder = tmp_path / uuid.uuid4().hex  # a name that no test before has registered
    for name in ("evil.py", "evil_module.py", "theirs/evil.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(COMPARATOR.format(mark=str(folder / "caught"), name=folder.name))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(folder)
    return folder / "theirs"


def record(folder: Path, **settings: Any) -> str:
    """Write a run.json with these settings."""
    content = {**GRAPH, "output": str(folder), **settings}
    (folder / "run.json").write_text(json.dumps({"config": content, "stages": {}}))
    return str(folder / "run.json")


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: "-".join(words[:2]))
def test_no_command_runs_the_code_of_a_run(theirs, words, capsys):
    record(theirs, comparator=theirs.parent.name, train={"plugins": ["evil.py"]})
    assert code_of(main.command, *(word.replace("RUN", str(theirs)) for word in words)) == 2
    printed = capsys.readouterr().err
    assert "run only if you name them: --set 'train.plugins=[\"evil.py\"]'" in printed
    assert str(theirs / "run.json") in printed
    assert not (theirs.parent / "caught").exists()


@pytest.mark.parametrize(
    "name", ["evil.py", "theirs/evil.py", "{}/evil.py", "file://{}/evil.py", "./x/../evil.py", "evil_module"]
)
def test_the_user_names_what_runs(theirs: Path, name: str) -> None:
    """A file or a module, wherever it lies; the name of one is no consent to another."""
    name = name.format(theirs.parent)
    train = {"plugins": [name, "other.py"], "on_change": "resume"}
    uri = record(theirs, comparator=theirs.parent.name, train=train)
    for overrides in ([], ["train.on_change=refuse"], ["dimension=8"]):
        with pytest.raises(ConfigError, match=r"train\.plugins: .*run only if you name them"):
            config.load(uri, overrides)
    for overrides in (["train.plugins[1]=mine.py"], ["train.plugins=[]"], ["train={plugins: []}"]):
        with pytest.raises(ConfigError):
            config.load(uri, overrides)
    with pytest.raises(ConfigError, match="run only if you name them"):
        _ = Run(str(theirs))._fold_in
    assert not (theirs.parent / "caught").exists()
    own = theirs.parent / f"own_{len(name)}.py"
    own.write_text((theirs.parent / "evil.py").read_text())
    assert list(config.load(uri, [f"train.plugins=[{own}]"]).train.plugins) == [str(own)]
    assert (theirs.parent / "caught").exists()


def test_a_library_call_takes_plug_ins_of_the_caller(theirs: Path) -> None:
    record(theirs, comparator=theirs.parent.name, train={"plugins": ["evil.py"]}, cluster={"master": "yarn"})
    own = theirs.parent / "evil.py"
    with pytest.raises(graphmill.errors.NotFoundError):  # there is no checkpoint
        _ = graphmill.open(str(theirs), plugins=[str(own)])._fold_in


@pytest.mark.parametrize(
    ("cluster", "option"),
    [
        ({"master": "tcp://elsewhere:8786", "tls": "off"}, "cluster.master=tcp://elsewhere:8786"),
        ({"master": "yarn", "yarn_classpath": "/evil.jar"}, "cluster.yarn_classpath=/evil.jar"),
        ({"master": "ssh://elsewhere", "python": "./evil"}, "cluster.python=./evil"),
    ],
)
def test_a_run_chooses_no_cluster(theirs, cluster, option, capsys, caplog):
    uri = record(theirs, cluster={**cluster, "num_workers": 3, "deploy": "cluster"})
    assert code_of(main.command, "predict", theirs, "--to", "to") == 2
    printed = capsys.readouterr().err.replace('"', "").replace("'", "")
    assert "its cluster is used only if you name it: --set" in printed
    assert option in printed
    with pytest.raises(ConfigError, match="its cluster is used only"):
        options.cluster_of(uri, (), None)
    settings = config.load(uri).model_dump()["cluster"]
    assert settings == {"num_workers": 3}
    assert code_of(main.command, "check", theirs, "--master", "local") == 2  # there are no tables
    assert "does not count here unless you name it" in caplog.text + capsys.readouterr().err


def test_a_cluster_of_this_machine_is_taken_from_a_run(theirs: Path) -> None:
    cluster = {"master": "local[3]", "worker_memory": "1GiB", "tls": "auto", "py_files": []}
    raw, missing = config.read_named(record(theirs, cluster=cluster, train={"plugins": []}))
    assert raw["cluster"] == cluster
    assert not missing


def test_every_key_of_the_cluster_is_harmless_or_asks() -> None:
    """A new key of the cluster asks for consent until somebody says that it is harmless."""
    ask = {key for key in ClusterConfig.model_fields if ClusterConfig.needs_consent(key, object())}
    assert ask >= {"master", "python", "archive", "py_files", "yarn_classpath", "yarn_options", "tls", "host"}
    assert ClusterConfig.needs_consent("a_new_key", "x")
