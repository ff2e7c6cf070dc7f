"""The map and its labels, and drift: planted groups are apart, from files that two runs have written."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import graphmill
from graphmill import report
from graphmill.checkpoints import Floats
from graphmill.cli.main import command
from graphmill.display.readable import number
from graphmill.errors import BadInputError, ConfigError
from graphmill.formats import remapped
from graphmill.library import Run
from graphmill.report.charts import REST, Chart
from graphmill.report.maps import MAX_COLOURS, MIN_VECTORS, Labels, kept_layout, layout, maps, project
from graphmill.report.page import Block, Note
from graphmill.report.vectors import cosines, drift
from graphmill.report.vectors import vectors as blocks_of

IDS = [f"{number:03d}" for number in range(60)]
DONE = {"status": "done", "stages": {"remap": {"status": "done"}}}


def run_with(folder: Path, vectors_ND: Floats, ids: list[str] = IDS) -> Run:
    """Write a run with movies in two partitions."""
    folder.mkdir(exist_ok=True)
    for part in range(2):
        with remapped.new_part(str(folder / "embeddings"), "movie", part, vectors_ND.shape[1]) as writer:
            writer.append(pa.array(ids[part::2]), vectors_ND[part::2])
    (folder / "run.json").write_text(json.dumps(DONE))
    return graphmill.open(str(folder))


@pytest.fixture
def vectors_ND(rng: np.random.Generator) -> Floats:  # noqa: N802
    return rng.normal(size=(60, 8)).astype(np.float32)


@pytest.fixture
def run(tmp_path: Path, vectors_ND: Floats) -> Run:
    return run_with(tmp_path / "run", vectors_ND)


def series_of(chart: Block) -> dict[str, Any]:
    """The glyphs of each series, by its name in the legend."""
    assert isinstance(chart, Chart)
    return {each.label.value: each.renderers[0] for each in chart.plot.legend[0].items}


def bars_of(chart: Block) -> dict[str, float]:
    """The length of each bar of the only group, from above."""
    assert isinstance(chart, Chart)
    (drawn,) = chart.plot.renderers
    return dict(zip(drawn.data_source.data["label"], drawn.data_source.data["value"], strict=True))


def label_file(folder: Path, kind: str, num_labels: int) -> str:
    """Labels of all ids but the last, in order of their frequency."""
    labels = [f"g{min(number % 20, number % num_labels):02d}" for number in range(59)]
    ids, labels = [*IDS[:59], IDS[0]], [*labels, "a second one"]  # the first counts
    table = pa.table({"year": [1900] * 60, "movieId": ids, "genre": labels})
    path = folder / f"movies.{kind}"
    if kind == "parquet":
        pq.write_table(table, path)
    else:
        rows = [f"1900,{i},{g}" for i, g in zip(ids, labels, strict=True)]
        path.write_text("\n".join(["year,movieId,genre", *rows, "1900,059,\n"]))
    return str(path)


@pytest.mark.parametrize(
    ("train", "is_told"),
    [
        ({"status": "failed"}, True),
        ({"status": "done", "finished": "2026-01-03"}, True),
        ({"status": "done", "finished": "2026-01-01"}, False),
        ({}, False),
    ],
)
def test_vectors_of_an_earlier_model_are_told(run: Run, train: dict[str, str], is_told: bool) -> None:
    run.record["stages"]["train"] = train
    for entry, told in (({"finished": "2026-01-02"}, is_told), ({"status": "failed"}, bool(train))):
        notes = [each.text for each in blocks_of(run, entry, {}) if isinstance(each, Note)]
        assert any("of an earlier model" in text for text in notes) == told


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_map_has_a_colour_for_each_label(tmp_path: Path, run: Run, kind: str) -> None:
    labels = Labels(label_file(tmp_path, kind, 4), ("movieId", "genre"))
    (chart,) = maps(run, labels)
    series = series_of(chart)
    assert list(series) == ["g00", "g01", "g02", "g03", "other"]
    assert [each.glyph.line_color == REST for each in series.values()] == [False] * 4 + [True]
    assert "by genre" in chart.title
    shown = {tip for each in series.values() for tip in each.data_source.data["label"]}
    assert shown >= {"000: g00", "057: g01", "059: without label"}
    assert len(shown) == 60
    (chart,) = maps(run, Labels(label_file(tmp_path, kind, 20), ("movieId", "genre")))
    rare = list(series_of(chart).values())
    assert len(rare) == MAX_COLOURS + 1
    assert sum(len(each.data_source.data["x"]) for each in rare) == 60
    assert rare[-1].glyph.line_color == REST


def test_labels_that_cannot_be_read_are_the_users_error(tmp_path: Path, run: Run) -> None:
    path = label_file(tmp_path, "csv", 4)
    with pytest.raises(ConfigError, match=r"expected a column 'id', found year, movieId, genre"):
        report.page_of(run, Labels(path))
    with pytest.raises(ConfigError, match="--type: expected one of movie, found 'user'"):
        report.page_of(run, Labels(path, ("movieId", "genre"), "user"))
    (tmp_path / "bad.parquet").write_text("no parquet")
    with pytest.raises(BadInputError, match=r"bad\.parquet"):
        report.page_of(run, Labels(str(tmp_path / "bad.parquet")))


def test_labels_of_other_ids_are_told(tmp_path: Path, run: Run) -> None:
    (tmp_path / "none.csv").write_text("id,label\nnobody,x\n")
    note, chart = maps(run, Labels(str(tmp_path / "none.csv")))
    assert isinstance(note, Note)
    assert "No id of movie" in note.text
    assert isinstance(chart, Chart)


def test_the_command_takes_labels_and_a_run_before(tmp_path: Path, run: Run, vectors_ND: Floats) -> None:
    run_with(tmp_path / "before", -vectors_ND)
    options = ["--labels", label_file(tmp_path, "csv", 4), "--label-columns", "movieId", "genre"]
    done = CliRunner().invoke(command, ["report", run.uri, *options, "--before", str(tmp_path / "before")])
    assert done.exit_code == 0, done.output
    text = (tmp_path / "run" / "report.html").read_text()
    assert "movie embeddings by genre" in text
    assert "chart-vectors-drift" in text
    assert "-1" in text
    two = CliRunner().invoke(command, ["report", run.uri, str(tmp_path / "before"), "--before", run.uri])
    assert two.exit_code == 2


def test_a_report_may_lie_elsewhere_and_replaces_no_other_file(tmp_path: Path, run: Run) -> None:
    for runs, name in (([run.uri], "one.html"), ([run.uri, run.uri], "two.html")):
        words = ["report", *runs, "--output", str(tmp_path / name)]
        for _ in range(2):  # a report is replaced
            assert CliRunner().invoke(command, words).exit_code == 0
        assert " - GraphMill</title>" in (tmp_path / name).read_text()
        (tmp_path / name).write_text("notes")
        refused = CliRunner().invoke(command, words)
        assert f"{name}: expected a report" in str(refused.exception)
        assert (tmp_path / name).read_text() == "notes"
    assert not (tmp_path / "run/report.html").exists()


def test_drift_is_the_cosine_of_the_same_ids(tmp_path: Path, run: Run, vectors_ND: Floats) -> None:
    turned_ND = vectors_ND.copy()
    turned_ND[:20] = -turned_ND[:20]
    turned_ND[20:] *= 3  # a longer vector is no other direction
    before = run_with(tmp_path / "before", turned_ND[:50], IDS[:50])
    found = cosines(run, before, "movie")
    assert sorted(np.round(found, 6)) == [-1.0] * 20 + [1.0] * 30
    bars, table = drift(run, before)
    assert [list(map(number, row)) for row in table.rows] == [["movie", "50", "1", "-1"]]
    assert "Good" in table.note
    shares = bars_of(bars)
    assert (shares["0.9 to 1.0"], shares["-1.0 to -0.9"], sum(shares.values())) == (0.6, 0.4, 1)
    assert next(iter(shares)) == "0.9 to 1.0"
    same, _ = drift(run, run)
    assert list(bars_of(same)) == ["0.999 to 1.000"]
    _, table = drift(run, run_with(tmp_path / "other", turned_ND[::-1]))
    assert table.note.startswith("Bad, if you use vectors of both runs together: movie moved much.")


def test_vectors_that_are_not_finite_are_left_out(tmp_path: Path, run: Run, vectors_ND: Floats) -> None:
    vectors_ND[3, 1], vectors_ND[10] = np.nan, np.inf
    damaged = run_with(tmp_path / "damaged", vectors_ND)
    (chart,) = maps(damaged, None)
    assert isinstance(chart, Chart)
    assert chart.title == "A map of 58 embeddings"
    assert len(cosines(run, damaged, "movie")) == len(cosines(damaged, run, "movie")) == 58


def test_runs_that_share_nothing_have_no_drift(tmp_path: Path, run: Run, vectors_ND: Floats) -> None:
    renamed = run_with(tmp_path / "ids", vectors_ND, [f"x{each}" for each in IDS])
    shorter = run_with(tmp_path / "length", vectors_ND[:, :4])
    assert list(drift(run, renamed)) == list(drift(run, shorter)) == []


def test_a_report_after_a_run_finds_the_run_that_training_started_from(tmp_path, run, vectors_ND):
    before = tmp_path / "before"
    run_with(before, vectors_ND)
    places = {"config": {"output": str(before), "checkpoint_path": f"{before}/checkpoint"}}
    (before / "run.json").write_text(json.dumps(DONE | places))
    record_uri = str(tmp_path / "run" / "run.json")
    page = Path(report.write_at(record_uri, None, str(tmp_path / "before" / "checkpoint")))
    assert "chart-vectors-drift" in page.read_text()
    report.write_at(record_uri, None, str(tmp_path / "gone" / "checkpoint"))
    assert "chart-vectors-drift" not in page.read_text()


def planted(rng: np.random.Generator, num_groups: int, size: int = 40) -> tuple[Floats, np.ndarray]:
    """Vectors in groups of which each has a direction of its own, and the groups' numbers."""
    centres_GD = np.linalg.qr(rng.normal(size=(32, 32)))[0][:num_groups]
    group_N = np.repeat(np.arange(num_groups), size)
    vectors_ND = (centres_GD[group_N] + 0.1 * rng.normal(size=(len(group_N), 32))).astype(np.float32)
    return vectors_ND * rng.uniform(0.1, 9, (len(group_N), 1)).astype(np.float32), group_N


def silhouette(places_N2: np.ndarray, group_N: np.ndarray) -> float:
    from sklearn.metrics import silhouette_score

    return float(silhouette_score(places_N2, group_N))


@pytest.mark.slow
def test_groups_are_apart_on_the_map(rng: np.random.Generator) -> None:
    pytest.importorskip("openTSNE", reason="needs openTSNE: pip install 'graphmill[map]'")
    vectors_ND, group_N = planted(rng, 6, 170)
    found = layout(vectors_ND)
    assert found.axes == ("t-SNE 1", "t-SNE 2")
    assert silhouette(found.places, group_N) > 0.6
    assert silhouette(found.places, rng.permutation(group_N)) < 0.1
    assert np.array_equal(layout(vectors_ND).places, found.places)


def test_without_the_extra_the_map_is_of_principal_components(rng, monkeypatch):
    monkeypatch.setitem(sys.modules, "openTSNE", None)  # as if it were not installed
    vectors_ND, group_N = planted(rng, 3)
    found = layout(vectors_ND)
    assert "principal component" in found.axes[0]
    assert "pip install 'graphmill[map]'" in found.meaning
    assert silhouette(found.places, group_N) > 0.6
    assert np.array_equal(layout(vectors_ND).places, found.places)


@pytest.mark.parametrize("count", [3, MIN_VECTORS - 1, MIN_VECTORS])
def test_few_or_equal_vectors_have_a_map(count: int) -> None:
    found = layout(np.ones((count, 4), np.float32))
    assert found.places.shape == (count, 2)
    assert np.isfinite(found.places).all()
    assert np.isfinite(layout(np.zeros((count, 2), np.float32)).places).all()


def test_the_map_shows_the_principal_components(rng: np.random.Generator) -> None:
    axes = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    spread = np.array([9.0, 4.0, 1.0, 0.5, 0.1, 0.1])
    vectors = (rng.normal(size=(4000, 6)) * spread) @ axes.T + 3
    for turned in (vectors, -vectors):
        place, share = project(turned.astype(np.float32))
        np.testing.assert_allclose(place.std(axis=0), spread[:2], rtol=0.05)
        np.testing.assert_allclose(share, (81 + 16) / (spread**2).sum(), rtol=0.02)
        assert (place[np.abs(place).argmax(axis=0), [0, 1]] > 0).all()


def test_places_are_kept_until_the_vectors_change(tmp_path: Path, rng: np.random.Generator) -> None:
    vectors_ND, _ = planted(rng, 3, 10)
    file = tmp_path / "results" / "map-32.json"
    first = kept_layout(str(file), vectors_ND)
    assert np.array_equal(first.places, layout(vectors_ND).places)
    content = json.loads(file.read_text())
    content["places"][0] = [7, 8]
    file.write_text(json.dumps(content))
    kept = kept_layout(str(file), vectors_ND)
    assert kept.places[0].tolist() == [7, 8]
    assert (kept.axes, kept.meaning) == (first.axes, first.meaning)
    moved = kept_layout(str(file), vectors_ND[::-1])
    assert np.array_equal(moved.places, layout(vectors_ND[::-1]).places)
    assert np.array_equal(kept_layout(str(file), vectors_ND).places, first.places)


def test_what_is_no_layout_is_made_anew(tmp_path: Path, rng: np.random.Generator) -> None:
    vectors_ND, _ = planted(rng, 2, 5)
    file = tmp_path / "map-32.json"
    first = kept_layout(str(file), vectors_ND)
    content = json.loads(file.read_text())
    places = (content["places"][:-1], "x", [[float("nan"), 1]] * 10)
    changed = [*({**content, "places": each} for each in places), {**content, "axes": ["one"]}, []]
    for text in ("{", *map(json.dumps, [*changed, {"of": content["of"]}])):
        file.write_text(text)
        assert np.array_equal(kept_layout(str(file), vectors_ND).places, first.places)
        assert json.loads(file.read_text()) == content
    kept = kept_layout(str(file / "below.json"), vectors_ND)  # a file is in the way: it cannot be kept
    assert np.array_equal(kept.places, first.places)
