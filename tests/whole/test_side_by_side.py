"""Runs that would write one place: the second ends, and so does one that was overtaken while it was stopped.

And commands that are wrong: what an earlier run has finished stays as it is.
"""

import json
import os
import re
import signal
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import psutil
import pytest

from graphmill import config, storage
from graphmill.cli import etl, main, pipeline, remap, train
from graphmill.config import Config
from graphmill.machine import processes
from graphmill.run import lock
from tests.commands import Command, code_of
from tests.contents import contents
from tests.etl.run.test_go_on import numbered_graph
from tests.forked import Fork, Forks
from tests.train.graphs import make_config, random_triples, write_graph
from tests.waiting import found_in, wait_until

COMMANDS: dict[str, click.Command] = {
    "etl": etl.command,
    "train": train.command,
    "remap": remap.command,
    "pipeline": pipeline.command,
}
LOCKED, WRONG = 75, 2
NO_MASTER = "tls://without-keys:1"


def write_conf(path: Path, settings: Config) -> Path:
    path.write_text(json.dumps({"defaults": "pbg"} | settings.model_dump(mode="json", exclude_unset=True)))
    return path


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """A configuration whose `output` is tmp_path/out."""
    return write_conf(tmp_path / "conf.json", numbered_graph(tmp_path, 0))


def run(name: str, conf: Path, *settings: str, master: str = NO_MASTER) -> int:
    """The exit code of a command; with that master it gets as far as its locks."""
    sets = [part for each in settings for part in ("--set", each)]
    return code_of(COMMANDS[name], "--conf", conf, "--master", master, *sets)


@pytest.mark.parametrize(
    ("name", "place", "settings", "expected"),
    [
        ("etl", "x/entities", ["entity_path={x}/entities"], LOCKED),
        ("etl", "x/edges/test", ["edge_root={x}/edges"], LOCKED),
        ("etl", "x/bad", ["etl.on_bad_row=quarantine", "etl.quarantine_path={x}/bad"], LOCKED),
        ("etl", "out/checkpoint", [], WRONG),  # it does not write that
        ("train", "x/checkpoint", ["checkpoint_path={x}/checkpoint"], LOCKED),
        ("train", "x", ["checkpoint_path={x}/checkpoint"], LOCKED),  # of which it would be a part
        ("train", "x/checkpoint/part", ["checkpoint_path={x}/checkpoint"], LOCKED),
        ("train", "x/embed", ["train.save_embed_path={x}/embed"], LOCKED),
        ("train", "x/model", ["train.save_model_path={x}/model"], LOCKED),
        ("train", "out/entities", [], WRONG),  # many may read that
        ("remap", "x/embeddings", ["embedding_path={x}/embeddings"], LOCKED),
        ("pipeline", "x/embeddings", ["embedding_path={x}/embeddings"], LOCKED),
        ("pipeline", "x/other", [], WRONG),
    ],
)
def test_every_folder_that_a_run_writes_is_its_own(tmp_path, conf, name, place, settings, expected):
    chosen = [each.replace("{x}", str(tmp_path / "x")) for each in settings]
    with lock.held(whole=[str(tmp_path / place)]):
        assert run(name, conf, *chosen) == expected
    assert run(name, conf, *chosen) == WRONG
    assert not [each for each in tmp_path.rglob("*") if each.is_file() and each.parent != tmp_path]


def test_only_one_run_writes_a_converted_checkpoint(tmp_path: Path) -> None:
    words = ("convert", "none", tmp_path / "x" / "target", "--format", "pbg")
    with lock.held(whole=[str(tmp_path / "x")]):
        assert code_of(main.command, *words) == LOCKED
    assert code_of(main.command, *words) == WRONG


def stopped(forked: Forks, name: str, conf: Path, evidence: Callable[[], bool]) -> Fork:
    """A command that is stopped as soon as there is `evidence`."""
    process = forked.start("graphmill", name, "--conf", conf)
    first = psutil.Process(process.pid)

    def has_come() -> bool:
        assert first.status() != psutil.STATUS_ZOMBIE, process.wait().stderr
        return evidence()

    wait_until(has_come, 300)
    process.send(signal.SIGSTOP)
    wait_until(lambda: first.status() == psutil.STATUS_STOPPED)
    return process


def files_of(folder: Path) -> dict[str, bytes]:
    """All that is there for others to see."""
    return {name: content for name, content in contents(folder).items() if "/." not in f"/{name}"}


def overtaken(process, output, monkeypatch, *whole):
    """What a stopped command says when it goes on and another has its locks; the files before and after."""
    monkeypatch.setattr(processes, "machine", lambda: "another machine, which sees no processes of this one")
    monkeypatch.setattr(lock, "BEAT_S", 0.01)
    for path in output.rglob(".*graphmill.l*"):
        os.utime(path, (0, 0))
    with lock.held(str(output), whole=list(map(str, whole))):
        before = files_of(output)
        process.send(signal.SIGCONT)
        return process.wait(LOCKED).stderr, before, files_of(output)


def test_an_etl_that_was_overtaken_commits_nothing(tmp_path, forked, monkeypatch):
    out = tmp_path / "out"
    # in many tasks: the first of them is long before the last
    conf = write_conf(tmp_path / "conf.json", numbered_graph(tmp_path, 0, 20_000))
    process = stopped(forked, "etl", conf, lambda: found_in(out, "**/*.codes.arrow") != [])
    message, before, after = overtaken(process, out, monkeypatch, out / "entities")
    assert "lost, as this run showed no life" in message
    assert after == before
    assert list(after) == ["run.json"]
    left = {path.relative_to(out).parts[0] for path in out.rglob(".*")} - {"edges"}
    assert all(re.match(r"\.(etl-work-|entities\.tmp-)", name) for name in left)  # for the next run


def test_a_training_that_was_overtaken_commits_nothing(tmp_path, rng, forked, monkeypatch):
    settings = make_config(tmp_path / "out", num_epochs=1, batch_size=10)
    write_graph(settings, {"node": 2000}, random_triples(rng, 2000, 1, 2000, 200_000))
    conf = write_conf(tmp_path / "conf.json", settings)
    checkpoint = tmp_path / "out" / "checkpoint"
    # written when the worker begins; the one bucket then takes seconds
    process = stopped(forked, "train", conf, (checkpoint / "config.json").exists)
    message, before, after = overtaken(process, tmp_path / "out", monkeypatch, checkpoint)
    assert "lost, as this run showed no life" in message
    assert after == before
    assert not list(checkpoint.glob("*.h5"))


@pytest.fixture
def finished(tmp_path: Path, conf: Path) -> dict[str, bytes]:
    """What an earlier run has left, by its looks."""
    settings = config.load(str(conf))
    output = str(tmp_path / "out")
    storage.write_text(f"{output}/run.json", '{"status": "done", "config": {"seed": 5}, "stages": {}}')
    storage.write_text(f"{output}/report.html", "<html>")
    for folder in (output, settings.entity_path, *settings.edge_paths, settings.checkpoint_path):
        storage.write_marker(folder, {})
    for folder in (settings.entity_path, *settings.edge_paths):
        storage.write_checksums(storage.manifest_of(folder).uri, {"edges_0_0.h5": "0" * 32})
    return files_of(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings", "master", "code"),
    [
        *((name, [], NO_MASTER, WRONG) for name in COMMANDS),
        ("etl", ["cluster.mastre=local"], NO_MASTER, WRONG),
        ("train", ["remap.no_key=1"], NO_MASTER, WRONG),
        ("remap", ["schedule.no_key=1"], NO_MASTER, WRONG),
        ("pipeline", ["dimension=many"], NO_MASTER, WRONG),
        ("etl", ["cluster.connect_timeout_s=1"], "tcp://127.0.0.1:1", 69),
        ("etl", ["cluster.connect_timeout_s=1"], "ssh://no-such-host.invalid", 69),
        ("etl", ["cluster.tls=off"], "cuda", WRONG),
        ("etl", ["cluster.worker_memory=255MiB"], "local[1]", WRONG),
        ("etl", ["cluster.worker_memory=100MiB"], "yarn", WRONG),
    ],
)
def test_a_wrong_option_and_a_cluster_that_does_not_start_leave_a_finished_run_as_it_is(
    tmp_path: Path, conf: Path, finished: dict[str, bytes], name: str, settings: list[str], master: str,
    code: int,
) -> None:  # fmt: skip
    if master == "cuda" and find_spec("dask_cuda") is not None:
        pytest.skip("dask-cuda is there")
    assert run(name, conf, *settings, master=master) == code
    assert files_of(tmp_path) == finished


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("etl", ["--set=etl.tables.0.relation=unknown"]),
        ("etl", ["--set=etl.tables.0.path=none.parquet"]),
        ("train", ["--set=init_path={out}/checkpoint"]),
        ("train", ["--set=train.candidates=1"]),
        ("remap", ["--set=remap.checkpoint_version=9"]),
        ("remap", ["--set=remap.entity_types=[unknown]"]),
        ("pipeline", ["--set=etl.tables.0.relation=unknown"]),
        ("evaluate", ["--split", "tset"]),
    ],
)
def test_what_a_stage_refuses_leaves_a_finished_run_as_it_is(
    tmp_path: Path, conf: Path, finished: dict[str, bytes], graphmill_command: Command, name: str, words: Any
) -> None:
    chosen = [each.replace("{out}", str(tmp_path / "out")) for each in words]
    assert graphmill_command(name, "--conf", conf, *chosen) == WRONG
    assert files_of(tmp_path) == finished
