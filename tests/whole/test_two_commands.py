"""From a table to vectors by two commands, and what comes after them: later commands need only the run."""

import csv
import json
import random
import re
from itertools import product
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from graphmill.cli.main import command
from graphmill.config import yaml_text
from tests.forked import Forks


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(command, list(map(str, arguments)))


def write_ratings(path: Path) -> None:
    """Users like films of one genre; some ids are empty."""
    draws = random.Random(0)
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["user_id", "film", "stars"])
        for at in range(1000):
            user = draws.randrange(100)
            rows.writerow(
                [f"u{user}" if at % 100 else "", f'Möbius, "{user % 5}-{draws.randrange(20)}"', at % 5]
            )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, forked: Forks) -> Path:
    """A folder in which a stranger has run the two commands."""
    folder = tmp_path_factory.mktemp("stranger")
    write_ratings(folder / "ratings.csv")
    for words in (["init", "ratings.csv", "--to", "ratings.yaml"], ["pipeline", "--conf", "ratings.yaml"]):
        done = forked("graphmill", *words, cwd=folder)
        assert done.code == 0, done.stderr
    return folder


pytestmark = pytest.mark.slow


@pytest.fixture
def output(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder / "output" / "ratings"


def test_there_are_vectors_a_report_and_a_record(output: Path) -> None:
    record = json.loads((output / "run.json").read_text())
    assert record["status"] == "done"
    assert record["stages"]["etl"]["num_rows_quarantined"] == 10
    assert (output / "report.html").exists()
    assert {path.name for path in (output / "embeddings").iterdir()} >= {"user", "film", "_SUCCESS"}


def test_later_commands_need_only_the_run(output: Path) -> None:
    found = invoke("neighbors", output, "--id", "u7", "--k", "3", "--json")
    assert found.exit_code == 0, found.output
    assert len(json.loads(found.output)["neighbors"]) == 3
    along = invoke("neighbors", output / "run.json", "--id", "u7", "--relation", "ratings", "--json")
    assert json.loads(along.output)["type"] == "film"
    for name, place in product(("train", "evaluate", "remap"), (output, "ratings.yaml")):
        planned = invoke(name, place, "--dry-run")
        assert planned.exit_code == 0, planned.output
        assert "plan" in planned.output
    refused = invoke("evaluate", output, "--conf", "ratings.yaml")
    assert refused.exit_code == 2
    assert "give RUN or --conf" in refused.output


def test_a_plan_comes_before_the_run_and_changes_nothing(output: Path, tmp_path: Path) -> None:
    before = sorted(Path.cwd().rglob("*"))
    for words in (
        ["check", "ratings.yaml"],
        ["pipeline", "ratings.yaml", "--dry-run", "--output", tmp_path / "new"],
        ["etl", "--conf", "ratings.yaml", "--dry-run"],
    ):
        planned = invoke(*words)
        assert planned.exit_code == 0, planned.output
        assert re.search(r"table ratings.csv +│ +about [\d,]+ rows", planned.output), planned.output
        assert re.search(r"entities, user +│ +about 100 ", planned.output), planned.output
    assert not (tmp_path / "new").exists()
    assert sorted(Path.cwd().rglob("*")) == before


def test_a_plan_names_what_is_wrong(output: Path, tmp_path: Path) -> None:
    content = yaml_text.parsed(Path("ratings.yaml").read_text(), "")
    for change, message in (
        ({"lhs": "user"}, "expected a column 'user' (lhs), found columns ['user_id', 'film', 'stars']"),
        ({"path": "none.csv"}, "none.csv: no file there to read rows from"),
    ):
        table = content["etl"]["tables"][0] | change
        conf = tmp_path / "conf.yaml"
        conf.write_text(json.dumps(content | {"etl": content["etl"] | {"tables": [table]}}))
        assert message in str(invoke("check", "--conf", conf).exception)


def test_options_of_spark_are_told_what_they_are_called(output: Path) -> None:
    for name in ("pipeline", "etl", "train", "evaluate", "remap"):
        refused = invoke(name, "--num-executors", "4")
        assert refused.exit_code == 2
        assert "here it is --num-workers" in refused.output


@pytest.mark.parametrize(
    "words",
    [["-h"], ["--version"], *([name, "-h"] for name in ("init", "check", "train", "remap", "convert"))],
)
def test_help_and_version(words: list[str]) -> None:
    shown = invoke(*words)
    assert shown.exit_code == 0
    assert re.search("Usage: |version ", shown.output)
