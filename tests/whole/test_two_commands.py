"""From a table to vectors by two commands, what comes after them, and ids folded into a trained graph."""

import csv
import json
import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

import graphmill
from graphmill.checkpoints import pbg
from graphmill.cli.main import command
from graphmill.config import yaml_text
from tests.finished import NUM_ENTITIES
from tests.forked import Forks

GENRES = ("crime", "drama", "comedy", "horror", "animé")
TITLES = ('The {}, a "{}" {}', "Amélie {} {} {}", "映画 {} {} {}")
FAVOURITE_SHARE = 0.85  # of a user's ratings go to the favourite genre; the others go to any movie


def invoke(*arguments: str | Path, code: int = 0) -> Result:
    """A command that ends with this code."""
    done = CliRunner().invoke(command, list(map(str, arguments)))
    assert done.exit_code == code, done.output
    return done


def write_ratings(path: Path, num_ratings: int) -> None:
    """A table as users have it: planted genres, which end the titles, 1 % duplicates, .3 % empty ids."""
    rng = np.random.default_rng(7)
    num_users, num_movies = num_ratings // 15, num_ratings // 60
    movies = [TITLES[n % 3].format(n, n * 7, GENRES[n % len(GENRES)]) for n in range(num_movies)]
    favourites = rng.integers(len(GENRES), size=num_users)
    popularity = 1 / (10 + rng.permutation(num_movies))
    of_genre = np.arange(num_movies) % len(GENRES)
    shares = [popularity * (of_genre == genre) for genre in range(len(GENRES))]
    shares = [each / each.sum() for each in [*shares, popularity]]
    rows: list[tuple[object, ...]] = []
    for user in rng.integers(num_users, size=num_ratings):
        liked = favourites[user] if rng.random() < FAVOURITE_SHARE else -1
        movie = rng.choice(num_movies, p=shares[liked])
        rows.append((f"user-{user}" if user % 7 else f"Zoë {user}", movies[movie], rng.integers(1, 6)))
    for number in range(num_ratings // 100):
        rows[-1 - number] = rows[number]
    for number in range(num_ratings // 350):
        rows[number * 11] = ("", *rows[number * 11][1:])
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([("user", "movie", "stars"), *rows])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, forked: Forks) -> Path:
    """A folder in which a stranger has run the two commands."""
    folder = tmp_path_factory.mktemp("stranger")
    write_ratings(folder / "ratings.csv", 6_000)
    for words in (["init", "ratings.csv", "--to", "ratings.yaml"], ["pipeline", "--conf", "ratings.yaml"]):
        done = forked("graphmill", *words, cwd=folder, has_report=True)
    assert done.stderr.count("keys that the configuration leaves out") == 1
    return folder


@pytest.fixture
def output(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder / "output" / "ratings"


def test_there_are_vectors_a_report_and_a_record(output: Path) -> None:
    record = json.loads((output / "run.json").read_text())
    assert record["status"] == "done"
    assert record["stages"]["etl"]["num_rows_quarantined"] == 17
    assert (output / "report.html").exists()
    assert {path.name for path in (output / "embeddings").iterdir()} >= {"user", "movie", "_SUCCESS"}
    written = pbg.read_config(str(output / "checkpoint"))
    for settings in (record["config"], written):
        assert (settings["num_epochs"], settings["batch_size"], settings["dimension"]) == (16, 16, 200)
        assert settings["entities"]["user"]["num_partitions"] == 1


def test_the_nearest_movies_share_their_genre(output: Path) -> None:
    titles, vectors = graphmill.open(str(output)).vectors("movie")
    genres = np.array([title.rsplit(" ", 1)[-1] for title in titles])
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    similarity = vectors @ vectors.T
    np.fill_diagonal(similarity, -np.inf)
    nearest = np.argsort(-similarity, axis=1)[:, :10]
    assert (genres[nearest] == genres[:, None]).mean() >= 0.97


def test_later_commands_need_only_the_run(output: Path) -> None:
    found = invoke("neighbors", output, "--id", "user-8", "--k", "3", "--json")
    assert len(json.loads(found.output)["neighbors"]) == 3
    along = invoke("neighbors", output / "run.json", "--id", "user-8", "--relation", "ratings", "--json")
    assert json.loads(along.output)["type"] == "movie"
    for name, place in product(("train", "evaluate", "remap"), (output, "ratings.yaml")):
        assert "plan" in invoke(name, place, "--dry-run").output
    assert "give RUN or --conf" in invoke("evaluate", output, "--conf", "ratings.yaml", code=2).output


def test_a_plan_comes_before_the_run_and_changes_nothing(output: Path, tmp_path: Path) -> None:
    before = sorted(Path.cwd().rglob("*"))
    for words in (
        ["check", "ratings.yaml"],
        ["pipeline", "ratings.yaml", "--dry-run", "--output", tmp_path / "new"],
        ["etl", "--conf", "ratings.yaml", "--dry-run"],
    ):
        planned = invoke(*words)
        assert re.search(r"table ratings.csv +│ +about [\d,]+ rows", planned.output), planned.output
        assert re.search(r"entities, user +│ +about 400 ", planned.output), planned.output
    assert not (tmp_path / "new").exists()
    assert sorted(Path.cwd().rglob("*")) == before


def test_a_plan_names_what_is_wrong(output: Path, tmp_path: Path) -> None:
    content = yaml_text.parsed(Path("ratings.yaml").read_text(), "")
    for change, message in (
        ({"lhs": "client"}, "expected a column 'client' (lhs), found columns ['user', 'movie', 'stars']"),
        ({"path": "none.csv"}, "none.csv: no file there to read rows from"),
    ):
        table = content["etl"]["tables"][0] | change
        conf = tmp_path / "conf.yaml"
        conf.write_text(json.dumps(content | {"etl": content["etl"] | {"tables": [table]}}))
        assert message in str(invoke("check", "--conf", conf, code=1).exception)


def test_options_of_spark_are_told_what_they_are_called(output: Path) -> None:
    for name in ("pipeline", "etl", "train", "evaluate", "remap"):
        assert "here it is --num-workers" in invoke(name, "--num-executors", "4", code=2).output


def test_a_known_id_folded_in_from_its_edges_lands_near_its_vector(finished_run: Path, triples: Path) -> None:
    edges = [line.split("\t") for line in (triples / "train.txt").read_text().splitlines()]
    run = graphmill.open(str(finished_run))
    found = []
    for known in (f"n{number:03}" for number in range(5, NUM_ENTITIES, 30)):
        own = [tuple("copy" if end == known else end for end in each) for each in edges if known in each]
        (copy,) = run.fold_in(own)
        (nearest,) = run.neighbors("entity", known, k=1)
        vector = run.vector("entity", known)
        cosine = float(copy.embedding @ vector / np.linalg.norm(copy.embedding) / np.linalg.norm(vector))
        found.append((cosine, nearest.similarity, copy.confidence))
    cosines, best_others, confidences = np.array(found).T
    assert np.median(cosines) > 0.85
    assert (cosines > best_others).mean() > 0.7  # nearer to its own vector than any other id is
    assert confidences.min() > 0.8
