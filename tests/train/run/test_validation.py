"""Early stopping: the best version is what a run ends with, whenever it is stopped or killed."""

import json
import shutil
from contextlib import suppress

import pytest

from graphmill.ask.evaluate import evaluate
from graphmill.checkpoints import pbg
from graphmill.errors import ConfigError, FormatError
from tests.contents import contents
from tests.train.graphs import assert_checksums, changed, embeddings, node_graph, random_triples, write_edges
from train import job
from train.run.trainer import Trainer
from train.run.validation import Validation

pytestmark = pytest.mark.slow


@pytest.fixture
def config(tmp_path, rng):
    """A graph that cannot be learnt, so that validation gets worse sooner or later."""
    train = {"validate_split": "valid", "patience": 3}
    config = node_graph(tmp_path, rng, 30, 150, num_epochs=12, lr=0.3, train=train)
    write_edges(config, random_triples(rng, 30, 1, 30, 40), config.split_path("valid"))
    return config


def read(config):
    return json.loads(contents(config.checkpoint_path)["validation.json"])


def test_the_best_version_stays(config, tmp_path):
    figures = job.train(config)
    found = read(config)
    scores = [entry["mrr"] for entry in found["epochs"]]
    best = found["best"]
    assert len(scores) < 12
    assert scores.index(max(scores)) == len(scores) - 4 == best - 1
    assert figures["version"] == figures["best_epoch"] == best
    assert figures["validation"] == found["epochs"]
    assert pbg.read_version(config.checkpoint_path) == best
    ranked = evaluate.evaluate(changed(config, evaluate={"split": "valid"}))
    assert ranked["metrics"]["mrr"] == max(scores)
    versions = {name for name in contents(config.checkpoint_path) if ".v" in name and "/" not in name}
    assert versions == {f"embeddings_node_0.v{best}.h5", f"model.v{best}.h5", f"checksums.v{best}.xxh128"}
    assert_checksums(config.checkpoint_path)
    assert_checksums(f"{config.checkpoint_path}/best")
    # it is that of a shorter run
    shorter = changed(config, checkpoint_path=str(tmp_path / "shorter"), num_epochs=best, train={})
    job.train(shorter)
    assert embeddings(shorter, "node", 30).equal(embeddings(config, "node", 30))
    # a run that has ended does nothing, also where its copy of the best is deleted, and goes on when asked
    before = contents(config.checkpoint_path)
    assert job.train(config)["num_edges"] == 0
    assert contents(config.checkpoint_path) == before
    patient = changed(config, num_epochs=14, train={"validate_split": "valid"})
    assert job.train(patient)["num_edges"] == (14 - best) * 150
    assert [entry["epoch"] for entry in read(patient)["epochs"]] == list(range(1, 15))
    shutil.rmtree(f"{config.checkpoint_path}/best")
    before = contents(config.checkpoint_path)
    assert job.train(patient)["version"] == read(config)["best"]
    assert contents(config.checkpoint_path) == before


def test_a_missing_copy_of_the_best_version_is_an_error(config, monkeypatch):
    after = Validation.after

    def after_and_delete(self, version):
        goes_on = after(self, version)
        if not goes_on:
            shutil.rmtree(f"{config.checkpoint_path}/best")
        return goes_on

    monkeypatch.setattr(Validation, "after", after_and_delete)
    with pytest.raises(FormatError, match=r"best: expected the version to go back to.*validation\.json"):
        job.train(config)
    version = pbg.read_version(config.checkpoint_path)
    assert f"model.v{version}.h5" in contents(config.checkpoint_path)


@pytest.mark.parametrize("killed_in", ["keep", "restore", "delete"])
def test_a_killed_run_ends_with_the_same_checkpoint(config, tmp_path, monkeypatch, killed_in):
    other = changed(config, checkpoint_path=str(tmp_path / "other"))
    job.train(other)

    class Killed(BaseException):
        pass

    def kill(*arguments):
        raise Killed

    target = "_delete" if killed_in == "delete" else killed_in
    commits = []
    commit = pbg.commit

    def counted(*arguments, **named):
        commit(*arguments, **named)
        commits.append(1)
        if len(commits) == read(other)["best"] + 3:  # the last epoch that is trained
            room = pbg.versions if target == "_delete" else pbg
            monkeypatch.setattr(room, target, kill)

    monkeypatch.setattr(pbg, "commit", counted)
    if killed_in == "keep":
        monkeypatch.setattr(pbg, target, kill)
    with pytest.raises(Killed):
        job.train(config)
    monkeypatch.undo()
    job.train(config)
    ours, theirs = contents(config.checkpoint_path), contents(other.checkpoint_path)
    changing = {"training_stats.json", "config.json", "best/config.json"}
    assert ours.keys() == theirs.keys()
    for name in ours.keys() - changing:
        if not name.endswith((".h5", ".xxh128")):  # these hold the configuration, with its paths
            assert ours[name] == theirs[name]
    assert_checksums(config.checkpoint_path)
    assert_checksums(f"{config.checkpoint_path}/best")
    assert embeddings(config, "node", 30).equal(embeddings(other, "node", 30))


def test_validation_runs_every_validate_every_epochs_and_at_the_end(config, tmp_path, caplog):
    train = {"validate_split": "valid", "validate_every": 2}
    job.train(changed(config, num_epochs=5, train=train))
    assert "stops nothing" not in caplog.text
    assert [entry["epoch"] for entry in read(config)["epochs"]] == [2, 4, 5]
    with pytest.raises(ConfigError, match=r"train\.validate_split: there is no folder .*dev"):
        job.train(changed(config, train={"validate_split": "dev"}))
    with suppress(ConfigError):
        job.train(changed(config, train={"validate_split": "train"}))
    assert "validate_split: train: the MRR of edges that are trained on stops nothing" in caplog.text
    job.train(changed(config, num_epochs=6, train={"patience": 1}))
    assert "train.patience stops nothing without train.validate_split" in caplog.text
    (tmp_path / "checkpoint" / "validation.json").write_text('{"epochs": [{"epoch": 1}]}')
    with pytest.raises(FormatError, match=r"validation\.json: expected the MRR of each epoch"):
        Trainer(config)
