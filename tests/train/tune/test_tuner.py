"""The command tune, from tables to a configuration; and a search that was stopped."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from etl.tables.files import table_roots
from graphmill import cluster
from graphmill import config as configuration
from graphmill.cli import etl
from graphmill.cli.main import tune as command
from graphmill.cli.stages import ETL, TRAIN
from graphmill.errors import ConfigError, LockedError
from graphmill.run.lock import NO_CLAIM
from graphmill.run.output_checks import check_outputs
from tests.commands import on_cluster
from tests.contents import contents
from tests.train.graphs import make_config, write_graph
from train.tune.tuner import Tuner

CONFIGURATION = """\
# Words and what follows them.
input: {folder}
output: {folder}/out
entities: {{word: {{num_partitions: 1}}}}
relations:
  - {{name: next, lhs: word, rhs: word, operator: diagonal}}   # one step
etl:
  tables:
    - {{path: train.csv, lhs: 0, rhs: 1, header: false, relation: next}}
    - {{path: valid.csv, lhs: 0, rhs: 1, header: false, relation: next, split: valid}}
dimension: 8
num_epochs: 3
lr: 0.001         # far too low
workers: 1
"""


def steps(rng, num_edges):
    """Edges on a circle of 60, one to five steps onwards."""
    start = rng.integers(0, 60, num_edges)
    return np.stack([start, np.zeros_like(start), (start + rng.integers(1, 6, num_edges)) % 60], axis=1)


@pytest.fixture
def conf(tmp_path, rng):
    for split, count in (("train", 1000), ("valid", 600)):
        lines = [f"w{lhs},w{rhs}" for lhs, _, rhs in steps(rng, count).tolist()]
        (tmp_path / f"{split}.csv").write_text("\n".join(lines))
    path = tmp_path / "words.yaml"
    path.write_text(CONFIGURATION.format(folder=tmp_path))
    return path


@pytest.fixture(autouse=True)
def cluster_of_commands(near_client, monkeypatch):
    on_cluster(near_client, monkeypatch, command)


def tune(conf, *options):
    words = ["--conf", str(conf), "--to", str(conf.parent / "tuned.yaml"), *options]
    return CliRunner().invoke(command, words, catch_exceptions=False)


@pytest.mark.slow
def test_tables_that_no_run_has_read_are_read_and_too_little_time_is_an_error(conf):
    with pytest.raises(ConfigError, match=r"--minutes: 0\.0001 are too few for two trials; a trial takes"):
        tune(conf, "--minutes", "0.0001")
    out = conf.parent / "out"
    assert [path.name for path in out.iterdir() if not path.name.startswith(".")] == ["tune"]
    assert (out / "tune" / "entities").is_dir()
    assert not (conf.parent / "tuned.yaml").exists()
    config = configuration.load(str(conf))
    check_outputs(
        config, [ETL, TRAIN], table_roots(config)
    )  # the run's own output may begin beside the search


@pytest.mark.slow
def test_a_better_configuration_is_written_from_a_finished_etl(conf):
    words = ["--conf", str(conf), "--set", "seed=1"]
    CliRunner().invoke(etl.command, words, catch_exceptions=False)
    out = conf.parent / "out"
    before = contents(out)
    result = tune(conf, "--minutes", "9", "--candidates", "3", "--set", "seed=1", "--set", "lr=0.00002")
    assert result.exit_code == 0, result.output
    assert "next: graphmill pipeline --conf" in result.output
    assert "--set seed=1" in result.output
    assert "--set lr" not in result.output
    text = (conf.parent / "tuned.yaml").read_text()
    assert "# Words and what follows them." in text
    assert "# one step" in text
    settings = configuration.load(str(conf.parent / "tuned.yaml"))
    assert settings.lr >= 0.05
    assert settings.train.model_dump()["validate_split"] == "valid"
    after = contents(out)
    assert {name: after[name] for name in after if not name.startswith("tune/")} == before
    found = json.loads(after["tune/tune.json"])
    assert found["sample"]["num_valid"] + found["sample"]["num_unseen"] == 600
    before, best = (trial["unseen"] for trial in found["trials"][-2:][::-1])
    assert f"that no trial has seen: MRR before {before:.4f}, after {best:.4f}" in result.output
    assert found["trials"][0]["changes"] == {}
    assert not [name for name in after if name.startswith(("tune/trial-", "tune/entities"))]


def search(config, folder, client, claim=NO_CLAIM):
    return Tuner(config, str(folder), 9, 4, client, claim).run()


class StoppedClaim:
    """The claim of a run that loses its lock at the fifth check."""

    checks = 0

    def check(self):
        self.checks += 1
        if self.checks == 5:
            raise LockedError("stopped here")


def test_a_stopped_search_goes_on(client, tmp_path, rng):
    """Another search leaves the record of the first."""
    graph, folder = make_config(tmp_path, num_epochs=1, dimension=4), tmp_path / "tune"
    write_graph(graph, {"node": 60}, steps(rng, 1200))
    with pytest.raises(LockedError):
        search(graph, folder, client, StoppedClaim())
    before = json.loads(contents(folder)["tune.json"])
    assert len(before["trials"]) == 3
    sharers = max(cluster.workers_by_host(client).values())
    five = Tuner(graph.model_copy(update={"workers": 5}), "", 9, 4, client, NO_CLAIM)
    assert five._threads == 5 // sharers < 5
    (folder / "trial-0-9").mkdir()  # of a killed trial
    found = search(graph, folder, client)
    assert not list(folder.glob("trial-*"))
    after = json.loads(contents(folder)["tune.json"])
    assert after["trials"][:3] == before["trials"]
    assert len(after["trials"]) == len(found.trials) == 4
    files = contents(folder)
    assert search(graph, folder, client) == found
    assert contents(folder) == files
    search(graph.model_copy(update={"lr": 1e30}), folder, client)
    assert (folder / "tune.json.stale-1").read_bytes() == files["tune.json"]
    first, *others = json.loads((folder / "tune.json").read_text())["trials"]
    assert first["mrr"] == 0  # a loss that is not finite is the worst result
    assert max(each["mrr"] for each in others) > 0


def test_an_existing_file_stays(conf):
    (conf.parent / "tuned.yaml").write_text("mine")
    with pytest.raises(ConfigError, match=r"tuned\.yaml: there is a file of that name"):
        tune(conf, "--minutes", "1")
    assert not Path(conf.parent, "out").exists()


def test_only_yaml_can_be_changed(tmp_path):
    path = tmp_path / "conf.py"
    path.write_text("def get_torchbiggraph_config():\n    return " + repr(make_config(tmp_path).pbg()))
    with pytest.raises(ConfigError, match="expected a YAML file"):
        tune(path, "--minutes", "1")
