"""A configuration of the fewest keys, as a new user writes it: what it learns, and that it runs once."""

import json
from pathlib import Path

import numpy as np
import pytest

import graphmill
from graphmill.checkpoints import pbg
from tests.forked import Forks
from tests.whole.ratings import genre_of, write_ratings

NUM_NEIGHBOURS = 10
CONFIGURATION = """\
input: .
output: out
entities: {user: {}, movie: {}}
relations:
  - {name: rated, lhs: user, rhs: movie}
etl:
  tables:
    - {path: ratings.csv, lhs: user, rhs: movie, relation: rated}
  on_bad_row: quarantine
"""


def pipeline(folder: Path, forked: Forks) -> str:
    """Run the pipeline in the folder; return its log."""
    done = forked("graphmill", "pipeline", "--conf", "ratings.yaml", cwd=folder, has_report=False)
    assert done.code == 0, done.stderr
    return done.stderr


def share_of_genre(folder: Path) -> float:
    """Share of the nearest movies of each movie that are of its genre."""
    titles, vectors = graphmill.open(str(folder / "out")).vectors("movie")
    genres = np.array([genre_of(title) for title in titles])
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    similarity = vectors @ vectors.T
    np.fill_diagonal(similarity, -np.inf)
    nearest = np.argsort(-similarity, axis=1)[:, :NUM_NEIGHBOURS]
    return float((genres[nearest] == genres[:, None]).mean())


@pytest.mark.slow
def test_the_nearest_movies_share_their_genre(tmp_path: Path, forked: Forks) -> None:
    write_ratings(tmp_path / "ratings.csv", 12_000)
    (tmp_path / "ratings.yaml").write_text(CONFIGURATION)
    log = pipeline(tmp_path, forked)
    assert share_of_genre(tmp_path) >= 0.97
    assert log.count("keys that the configuration leaves out") == 1
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    written = pbg.read_config(str(tmp_path / "out" / "checkpoint"))
    for settings in (record["config"], written):
        assert (settings["num_epochs"], settings["batch_size"], settings["dimension"]) == (8, 16, 200)
        assert settings["entities"]["user"]["num_partitions"] == 1
    assert "train: skipped, unchanged since" in pipeline(tmp_path, forked)
