"""Early stopping: the best version is what a run ends with, whenever it is stopped or killed."""

import json
import shutil

import pytest

from graphmill.ask.evaluate import evaluate
from graphmill.checkpoints import pbg
from graphmill.errors import ConfigError, FormatError
from tests.train.graphs import (
    assert_checksums,
    changed,
    contents,
    embeddings,
    make_config,
    random_triples,
    write_graph,
)
from train import job
from train.run.trainer import Trainer
from train.run.validation import Validation


@pytest.fixture
def config(tmp_path, rng):
    """A graph that cannot be learnt, so that validation gets worse sooner or later."""
    config = make_config(
        tmp_path, num_epochs=12, eval_fraction=0.0, lr=0.3, train={"validate_split": "valid", "patience": 3}
    )
    write_graph(config, {"node": 30}, random_triples(rng, 30, 1, 30, 150))
    write_graph(config, {"node": 30}, random_triples(rng, 30, 1, 30, 40), path=config.split_path("valid"))
    return config


def read(config):
    return json.loads(contents(config.checkpoint_path)["validation.json"])


def mrr(config):
    ranked = changed(config, evaluate={"split": "valid"})
    return evaluate.evaluate(ranked)["metrics"]["mrr"]


@pytest.mark.slow
def test_the_best_version_stays(config):
    figures = job.train(config)
    found = read(config)
    scores = [entry["mrr"] for entry in found["epochs"]]
    assert len(scores) < 12
    assert scores.index(max(scores)) == len(scores) - 4 == found["best"] - 1
    assert figures["version"] == figures["best_epoch"] == found["best"]
    assert figures["validation"] == found["epochs"]
    assert pbg.read_version(config.checkpoint_path) == found["best"]
    assert mrr(config) == max(scores)
    versions = {name for name in contents(config.checkpoint_path) if ".v" in name and "/" not in name}
    assert versions == {
        f"{stem}.v{found['best']}.{end}"
        for stem, end in (("embeddings_node_0", "h5"), ("model", "h5"), ("checksums", "xxh128"))
    }
    assert_checksums(config.checkpoint_path)
    assert_checksums(f"{config.checkpoint_path}/best")


@pytest.mark.slow
def test_the_best_version_equals_that_of_a_shorter_run(config, tmp_path):
    job.train(config)
    best = read(config)["best"]
    shorter = changed(config, checkpoint_path=str(tmp_path / "shorter"), num_epochs=best, train={})
    job.train(shorter)
    assert embeddings(shorter, "node", 30).equal(embeddings(config, "node", 30))


@pytest.mark.slow
def test_a_run_that_has_ended_does_nothing_and_goes_on_when_asked_for_more(config):
    job.train(config)
    before = contents(config.checkpoint_path)
    figures = job.train(config)
    assert figures["num_edges"] == 0
    assert contents(config.checkpoint_path) == before
    patient = changed(config, num_epochs=14, train={"validate_split": "valid"})
    best = figures["best_epoch"]
    assert job.train(patient)["num_edges"] == (14 - best) * 150
    assert [entry["epoch"] for entry in read(patient)["epochs"]] == list(range(1, 15))


@pytest.mark.slow
def test_a_run_that_has_ended_stays_where_its_copy_of_the_best_is_deleted(config):
    job.train(config)
    shutil.rmtree(f"{config.checkpoint_path}/best")
    before = contents(config.checkpoint_path)
    figures = job.train(config)
    assert figures["version"] == read(config)["best"]
    assert contents(config.checkpoint_path) == before


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("killed_in", ["keep", "restore", "delete"])
def test_a_killed_run_ends_with_the_same_checkpoint(config, tmp_path, monkeypatch, killed_in):
    """Whatever was done of the end, the next run ends with the same checkpoint."""
    other = changed(config, checkpoint_path=str(tmp_path / "other"))
    job.train(other)

    class Killed(BaseException):
        pass

    def kill(*arguments):
        raise Killed

    target = {"keep": "keep", "restore": "restore", "delete": "_delete"}[killed_in]
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


def test_validation_runs_every_validate_every_epochs_and_at_the_end(config):
    job.train(changed(config, num_epochs=7, train={"validate_split": "valid", "validate_every": 3}))
    assert [entry["epoch"] for entry in read(config)["epochs"]] == [3, 6, 7]


def test_an_error_names_the_damaged_file(config, tmp_path):
    job.train(changed(config, num_epochs=1))
    (tmp_path / "checkpoint" / "validation.json").write_text('{"epochs": [{"epoch": 1}]}')
    with pytest.raises(FormatError, match=r"validation\.json: expected the MRR of each epoch"):
        Trainer(config)


def test_without_a_split_nothing_happens(tmp_path):
    config = make_config(tmp_path)
    validation = Validation(config, 1, 0, lambda config: pytest.fail("nothing to rank"))
    assert validation.after(1)
    assert validation.end(1) == 1
    assert validation.figures() == {}
    assert not validation.ended


def test_a_split_that_is_not_there_is_refused_before_training(config):
    with pytest.raises(ConfigError, match=r"train\.validate_split: there is no folder .*dev"):
        job.train(changed(config, train={"validate_split": "dev"}))


def test_another_split_is_another_input(config, rng):
    before = job.fingerprint(config)
    write_graph(config, {"node": 30}, random_triples(rng, 30, 1, 30, 41), path=config.split_path("valid"))
    assert job.fingerprint(config) != before
