"""Runs side by side."""

import copy
from pathlib import Path

import graphmill
from graphmill import report
from graphmill.library import Run
from graphmill.report.charts import COLOURS, bars, to_json
from graphmill.report.overview import names, page_of_runs
from graphmill.report.page import PageTable
from tests.graphmill.report.browser import show
from tests.graphmill.report.runs import record, write_run


def two_runs(folder: Path) -> list[Run]:
    one, two = record(), copy.deepcopy(record())
    two["config"]["dimension"] = 16
    two["metrics"]["mrr"] = two["stages"]["evaluate"]["metrics"]["mrr"] = 0.3
    two["metrics"]["mean_rank"] = 20.0
    for name, content in (("one", one), ("two", two)):
        (folder / name).mkdir()
        write_run(folder / name, content)
    return [graphmill.open(str(folder / name)) for name in ("one", "two")]


def test_the_comparison_shows_metrics_and_different_settings(tmp_path: Path) -> None:
    page = page_of_runs(two_runs(tmp_path))
    blocks = [block for section in page.sections for block in section.blocks]
    tables = {block.title: block for block in blocks if isinstance(block, PageTable)}
    metrics = tables["Metrics"]
    assert list(metrics.columns) == ["metric", "one", "two"]
    assert list(metrics.rows[0]) == ["mrr", 0.2, 0.3]
    best = {metrics.rows[row][0]: metrics.columns[column] for row, column in metrics.best.items()}
    assert best == {"mrr": "two", "mean_rank": "one"}  # a small rank is a good one; what is equal has no best
    assert [list(row) for row in tables["Settings"].rows] == [["dimension", "8", "16"]]
    assert "Versions" not in tables


def test_a_browser_draws_the_comparison(tmp_path: Path) -> None:
    target = tmp_path / "comparison.html"
    report.write_comparison(two_runs(tmp_path), str(target))
    shown = show(target)
    assert shown.console == []
    assert shown.num_charts == 6


def test_every_run_has_bars() -> None:
    groups = {f"run-{number}": [number / 10] for number in range(len(COLOURS) + 2)}
    (chart,) = bars("degrees", "MRR", "MRR", ["3-9 edges"], groups, note="Long bars are good.")
    drawn = to_json(chart.plot, "chart")
    assert all(f'"{name}"' in drawn for name in groups)


def test_names_of_runs_are_short_and_distinct(tmp_path: Path) -> None:
    for name in ("a/out", "b/out", "c/else"):
        (tmp_path / name / "embeddings").mkdir(parents=True)
    runs = [graphmill.open(str(tmp_path / name)) for name in ("a/out", "b/out", "c/else")]
    assert names(runs) == ["a/out", "b/out", "c/else"]
    assert names(runs[1:]) == ["out", "else"]
    assert len(set(names([runs[0], runs[0]]))) == 2
