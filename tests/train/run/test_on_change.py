"""What becomes of a checkpoint when the configuration changes: `train.on_change`."""

import json
import os
import shutil
import time
from itertools import product
from pathlib import Path

import pytest

from graphmill import config as configuration
from graphmill import storage
from graphmill.errors import ConfigError, DivergenceError, FormatError
from tests.commands import code_of
from tests.contents import contents
from tests.train.graphs import node_graph, random_triples, write_graph
from train import job


@pytest.fixture
def config(tmp_path, rng):
    return node_graph(tmp_path, rng, num_epochs=1)


def changed(config, on_change=None, **settings):
    raw = config.model_dump() | settings
    raw["train"] = raw["train"] | ({"on_change": on_change} if on_change else {})
    return configuration.from_mapping(raw)


def trained(config):
    """As `job.run` does, in this process."""
    changes = job.claim_checkpoint(config)
    return job.train(config) | {"changes": changes}


def record_of(config):
    return json.loads(Path(config.checkpoint_path, "graphmill.json").read_text())


def stale(tmp_path, number):
    return tmp_path / f"checkpoint.stale-{number}"


def test_two_changes_in_a_row_keep_both_checkpoints(config, near_client, tmp_path, caplog):
    """YAML restarts: whatever was trained otherwise keeps a name of its own, and is told of."""
    job.run(config, near_client)
    first = contents(config.checkpoint_path)
    caplog.set_level("INFO", "graphmill")
    figures = job.run(changed(config, lr=0.2), near_client)
    assert figures["first_version"] == 0
    assert "settings.lr: 0.1 -> 0.2" in caplog.text
    assert f"it is moved to {stale(tmp_path, 1)}" in caplog.text
    assert figures["moved_aside"] == [str(stale(tmp_path, 1))]
    second = contents(config.checkpoint_path)
    figures = job.run(changed(config, lr=0.3), near_client)
    assert contents(stale(tmp_path, 1)) == first
    assert contents(stale(tmp_path, 2)) == second
    # named for as long as they are there, so that no kill and no skipped run makes one forgotten
    assert figures["moved_aside"] == [str(stale(tmp_path, number)) for number in (1, 2)]
    again = job.run(changed(config, "resume", lr=0.4), near_client)
    assert again["moved_aside"] == figures["moved_aside"]
    assert "nothing was left to train: raise num_epochs" in caplog.text


TUNABLE = {
    "num_epochs": 3, "lr": 0.01, "relation_lr": 0.02, "batch_size": 20, "num_batch_negs": 5,
    "num_uniform_negs": 7, "bucket_order": "random", "loss_fn": "ranking", "margin": 0.3,
    "regularization_coef": 0.1, "max_norm": 1.0, "seed": 5, "eval_fraction": 0.2, "init_scale": 0.1,
    "train": {"lr_schedule": "linear", "optimizer": "adagrad", "negative_power": 0.5},
    "relations": [{"name": "r", "lhs": "node", "rhs": "node", "operator": "diagonal", "weight": 2.0}],
}  # fmt: skip


def test_tunable_settings_may_resume(config, tmp_path):
    trained(config)
    figures = trained(changed(config, "resume", **TUNABLE))
    assert (figures["first_version"], figures["num_epochs"]) == (1, 3)
    assert figures["changes"]
    assert not list(tmp_path.glob("*.stale*"))


NEVER = [
    {"dimension": 12},
    {"comparator": "l2"},
    {"global_emb": False},
    {"bias": True},
    {"num_edge_chunks": 2},
    {"max_edges_per_chunk": 50},
    {"dynamic_relations": True, "global_emb": False},
    {"train": {"reciprocal_relations": True}},
    {"entities": {"node": {"num_partitions": 1}, "other": {"num_partitions": 1}}},
    {"relations": [{"name": "r", "lhs": "node", "rhs": "node", "operator": "translation"}]},
    {"relations": [{"name": "other", "lhs": "node", "rhs": "node", "operator": "diagonal"}]},
]


def test_fixed_settings_never_resume(config, tmp_path):
    trained(config)
    before = contents(tmp_path)
    for settings in NEVER:
        for claim in (job.claim_checkpoint, job.check):
            message = r"(?s)train\.on_change: resume: .* what is learned: .*train\.on_change=restart"
            with pytest.raises(ConfigError, match=message) as error:
                claim(changed(config, "resume", lr=0.01, **settings))
            assert "settings.lr" not in str(error.value)  # that may change
        assert contents(tmp_path) == before
    job.claim_checkpoint(changed(config, "restart", **NEVER[0]))
    assert stale(tmp_path, 1).is_dir()


def test_fewer_epochs_than_trained_start_anew_or_are_refused(config, tmp_path):
    """Else run.json would say 2, and the vectors would have 3."""
    trained(changed(config, num_epochs=3))
    before = contents(tmp_path)
    for on_change, claim in product(("resume", "refuse"), (job.claim_checkpoint, job.check)):
        with pytest.raises(
            ConfigError, match=rf"train\.on_change: {on_change}: .*: num_epochs: 3 -> 2\. Set"
        ):
            claim(changed(config, on_change, num_epochs=2))
    assert contents(tmp_path) == before
    figures = trained(changed(config, num_epochs=2))
    assert (figures["first_version"], figures["num_epochs"]) == (0, 2)
    assert stale(tmp_path, 1).is_dir()
    assert trained(changed(config, num_epochs=2))["first_version"] == 2


def test_only_the_end_of_training_is_an_end(config, near_client):
    job.run(config, near_client)
    assert record_of(config)["ended"] == 1
    assert job.claim_checkpoint(changed(config, "resume", lr=0.2, num_epochs=2)) != []
    assert record_of(config)["ended"] == 1  # version 1 is there, until another is committed
    job.claim_checkpoint(changed(config, "restart", lr=0.3))
    assert "ended" not in record_of(config)


def test_other_inputs_never_resume(config, tmp_path, rng):
    more = changed(config, "resume", edge_paths=[*config.edge_paths, str(tmp_path / "edges" / "more")])
    write_graph(config, {"node": 20}, random_triples(rng, 20, 1, 20, 9), path=more.edge_paths[1])
    trained(more)
    with pytest.raises(ConfigError, match=r"resume: .*: inputs: \S+/more \(files\) -> nothing\. Set"):
        job.claim_checkpoint(changed(config, "resume"))
    write_graph(config, {"node": 20}, random_triples(rng, 20, 1, 20, 61))
    job.check(more)  # before etl has run nobody can say
    with pytest.raises(ConfigError, match=r"resume: .*edges/train/edges_0_0\.h5 is another file"):
        job.claim_checkpoint(more)


def test_a_checkpoint_of_other_entities_is_told_by_their_age(config):
    storage.write_marker(config.entity_path, {"run": 1})
    trained(config)
    storage.write_marker(config.entity_path, {"run": 2})
    for ago_s, age in ((-7200, "newer"), (7200, "another one, and older")):
        os.utime(Path(config.entity_path, "_SUCCESS"), (time.time() - ago_s,) * 2)
        with pytest.raises(ConfigError, match=rf"resume: .*entities is {age} \(.*\) than what was") as error:
            job.claim_checkpoint(changed(config, "resume"))
        assert "made_from" not in str(error.value)


def test_a_wrong_shape_names_the_setting_that_changed(config, near_client, rng):
    """The state after PBG's own training, which leaves config.json and no record of ours."""
    trained(config)
    Path(config.checkpoint_path, "graphmill.json").unlink()
    settings = {"train": {"on_change": "resume"}, "num_epochs": 2}
    write_graph(config, {"node": 25}, random_triples(rng, 25, 1, 25, 60))
    with pytest.raises(FormatError, match=r"shape \(20, 8\); .* ask for \(25, 8\).*as init_path") as error:
        job.run(changed(config, **settings), near_client)
    assert "changed since" not in str(error.value)  # no setting did
    wide = changed(config, dimension=10, **settings)
    with pytest.raises(ConfigError, match=r"what is learned: settings\.dimension: 8 -> 10"):
        job.run(wide, near_client)


def test_refuse_ends_with_2_and_touches_nothing(config, tmp_path, capsys):
    from graphmill.cli.train import command

    trained(config)
    storage.write_marker(config.checkpoint_path, {"made": "once"})
    conf = tmp_path / "run.yaml"
    conf.write_text(json.dumps({"defaults": "pbg"} | config.model_dump(mode="json", exclude_defaults=True)))
    before = contents(tmp_path)
    arguments = ["--conf", str(conf), "--set", "lr=0.05", "--set", "train.on_change=refuse"]
    assert code_of(command, *arguments) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "settings.lr: 0.1 -> 0.05" in told
    assert "Set this back, name another checkpoint_path, or --set train.on_change=resume" in told
    assert contents(tmp_path) == before
    job.check(changed(config, "refuse", num_epochs=5, workers=2))  # none of these makes it another one


def test_a_configuration_of_pbg_resumes_and_yaml_restarts(config, tmp_path):
    trained(config)
    settings = config.pbg() | {"lr": 0.02, "num_epochs": 2}
    python, yaml = tmp_path / "config.py", tmp_path / "config.yaml"
    python.write_text(f"def get_torchbiggraph_config():\n    return {settings!r}\n")
    yaml.write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match=r"train\.on_change: refuse"):
        job.check(configuration.load(str(python), ["train.on_change=refuse"]))
    assert trained(configuration.load(str(python)))["first_version"] == 1
    assert not stale(tmp_path, 1).exists()
    assert trained(configuration.load(str(yaml), ["lr=0.03"]))["first_version"] == 0
    assert stale(tmp_path, 1).is_dir()


def test_the_history_of_settings_is_kept_with_the_checkpoint(config):
    rates = [(0.1, 1), (0.05, 3), (0.05, 4), (0.04, 4), (0.03, 5)]
    for lr, num_epochs in rates:
        trained(changed(config, "resume", lr=lr, num_epochs=num_epochs))
    record = record_of(config)
    assert record["settings"]["lr"] == 0.03
    # under .04 nothing was left to train: it never held
    held = [(entry["from_version"], entry["settings"]["lr"]) for entry in record["history"]]
    assert held == [(0, 0.1), (1, 0.05), (4, 0.03)]
    assert record["history"][-1] == {"from_version": 4} | {key: record[key] for key in ("settings", "train")}


def test_a_record_of_an_earlier_release_goes_on(config, tmp_path):
    """It has no history, and does not say how many of its inputs are edges."""
    trained(config)
    uri = Path(config.checkpoint_path, "graphmill.json")
    uri.write_text(json.dumps({key: record_of(config)[key] for key in ("settings", "train", "inputs")}))
    before = contents(tmp_path)
    assert job.claim_checkpoint(config) == []
    assert contents(tmp_path) == before
    assert trained(changed(config, "resume", lr=0.02, num_epochs=2))["first_version"] == 1
    assert [entry["settings"]["lr"] for entry in record_of(config)["history"]] == [0.1, 0.02]


@pytest.mark.parametrize(
    ("key", "value"),
    [("settings", 5), ("inputs", {}), ("num_edge_paths", "1"), ("history", [7]), ("history", [{}])],
)
def test_a_damaged_record_is_refused(config, key, value):
    trained(config)
    Path(config.checkpoint_path, "graphmill.json").write_text(json.dumps(record_of(config) | {key: value}))
    for claim in (job.claim_checkpoint, job.check):
        with pytest.raises(FormatError, match=rf"graphmill\.json: {key}: expected what a training writes"):
            claim(changed(config, "resume", lr=0.02))


def test_pbgs_own_checkpoint_goes_on_with_another_rate_and_not_with_another_model(config, tmp_path):
    trained(config)
    Path(config.checkpoint_path, "graphmill.json").unlink()
    with pytest.raises(ConfigError, match=r"what is learned: settings\.comparator: \"dot\" -> \"cos\""):
        job.claim_checkpoint(changed(config, comparator="cos"))
    renamed = [{"name": "another", "lhs": "node", "rhs": "node", "operator": "diagonal"}]
    figures = trained(changed(config, lr=0.01, num_epochs=2, num_edge_chunks=1, relations=renamed))
    assert figures["first_version"] == 1
    history = record_of(config)["history"]
    assert [(entry["from_version"], entry["settings"]["lr"]) for entry in history] == [(0, 0.1), (1, 0.01)]
    Path(config.checkpoint_path, "graphmill.json").unlink()
    job.claim_checkpoint(changed(config, "restart", lr=0.02))
    assert stale(tmp_path, 1).is_dir()


def test_a_checkpoint_that_lost_its_version_file_is_moved_aside(config, tmp_path, caplog):
    trained(changed(config, num_epochs=2))
    Path(config.checkpoint_path, "checkpoint_version.txt").unlink()
    before = contents(config.checkpoint_path)
    caplog.set_level("INFO", "graphmill")
    assert trained(changed(config, num_epochs=2))["first_version"] == 0
    assert "holds version 2, and no checkpoint_version.txt" in caplog.text
    assert contents(stale(tmp_path, 1)) == before


def test_a_checkpoint_comes_back_where_nothing_is_trained_in_its_place(config, near_client, tmp_path, rng):
    """The rows of init_path are read late, when the checkpoint has been moved aside."""
    longer = node_graph(tmp_path / "longer", rng, num_epochs=1, dimension=config.dimension + 4)
    job.run(longer, near_client)
    job.run(config, near_client)
    before = contents(tmp_path)
    for settings in ({}, {"train": {"ensemble": 2}}):
        wrong = changed(config, **settings, init_path=longer.checkpoint_path)
        with pytest.raises(FormatError, match="the configuration asks for"):
            job.run(wrong, near_client)
        assert contents(tmp_path) == before
    diverging = changed(config, num_epochs=2, lr=1e30, init_scale=1e30)
    with pytest.raises(DivergenceError):
        job.run(diverging, near_client)
    assert contents(tmp_path) == before
    trained(changed(config, lr=0.2))
    with pytest.raises(DivergenceError):  # the second epoch; the first one stays
        job.run(changed(config, "resume", num_epochs=2, lr=1e30), near_client)
    assert stale(tmp_path, 1).is_dir()


def test_an_epoch_that_is_preserved_again_is_moved_aside(config, near_client):
    """Early stopping has gone back, say; the epochs after the best one are trained again, otherwise."""
    preserving = changed(config, "resume", num_epochs=2, checkpoint_preservation_interval=1)
    job.run(preserving, near_client)
    root = Path(config.checkpoint_path)
    for name in ("checkpoint_version.txt", "embeddings_node_0.v1.h5", "model.v1.h5"):
        shutil.copy(root / "epoch_1" / name, root / name)
    figures = job.run(changed(preserving, lr=0.01), near_client)
    assert figures["first_version"] == 1
    assert figures["moved_aside"] == [str(root / "epoch_2.stale-1")]


def test_an_ended_run_continues_from_its_best_version(config, rng):
    valid = {"validate_split": "valid", "patience": 1}
    for split in ("valid", "dev"):
        write_graph(config, {"node": 20}, random_triples(rng, 20, 1, 20, 30), path=config.split_path(split))
    ended = changed(config, "resume", num_epochs=12, lr=1.0, train=valid)
    version = trained(ended)["version"]
    assert version < 11
    figures = trained(changed(ended, lr=0.001))
    assert figures["first_version"] == version
    assert figures["num_edges"] > 0
    of_dev = trained(changed(ended, "resume", num_epochs=14, train=valid | {"validate_split": "dev"}))
    assert of_dev["first_version"] == figures["version"]
    assert min(entry["version"] for entry in of_dev["validation"]) >= figures["version"]
