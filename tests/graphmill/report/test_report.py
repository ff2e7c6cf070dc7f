"""report.html: its content, and its looks in a browser; several runs side by side."""

import copy
import html
import json
import math
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphmill
from graphmill import config, report
from graphmill.cli.session import write_report
from graphmill.errors import FormatError
from graphmill.formats import remapped
from graphmill.library import Run
from graphmill.report.charts import COLOURS, REST, Chart, bars, to_json
from graphmill.report.overview import names, page_of_runs
from graphmill.report.page import Note, PageTable, render
from graphmill.report.results import exports
from graphmill.report.stages import _rows_note
from tests.forked import Forks
from tests.graphmill.report.browser import show, show_probed
from tests.graphmill.smallest import GRAPH

HOSTILE = (
    "<script>document.title='owned'</script>",
    '"><img src=x onerror="document.title=\'owned\'">',
    "</script><script>document.title='owned'</script>",
    "$$x^2$$",
    r"\(x\)",
    "{{ 7 * 7 }}",
    "@label{safe}",
    "&amp;<b>\u2028\u202e",
    '"id":"p1001"',
)
SIDE = {"num_edges": 10, "mrr": 0.2, "hits@10": 0.4, "mrr_most_popular": 0.05, "mrr_random": 0.01}
SIDES = {"lhs": SIDE, "rhs": SIDE | {"num_edges": 30, "mrr": 0.4}}


def record() -> dict[str, Any]:
    """A run.json."""
    bucket = {"lhs": 0, "edges": 50, "seconds": 0.1, "wait_s": 0, "reg": 0, "mrr": 0.1}
    buckets = [bucket | {"rhs": n, "loss": 2 / (n + 1)} for n in range(4)]
    moved = {"swap_wait_s": 0.1, "partitions_read": 2, "partitions_written": 2, "peak_bytes": 100_000_000}
    every = {"edges": 200, "seconds": 1.0, "edges_per_s": 200, "reg": 0.0, **moved, "buckets": buckets}
    epochs = [every | {"epoch": epoch, "loss": 2 / epoch, "mrr": 0.1 * epoch} for epoch in (1, 2, 3)]
    names = list(HOSTILE)
    buckets_of_train = {"num_buckets": 4, "num_empty": 1, "min_edges": 0, "mean_edges": 13, "max_edges": 40}
    etl = {
        **{"status": "done", "seconds": 1.0, "step_seconds": {"encode": 0.5}, "bytes_in": 12345},
        **{"num_rows": 1000, "num_rows_quarantined": 9, "quarantined": {names[0]: 9}},
        **{"num_edges": {"train": 900, "test": 88}, "num_edges_left_out": {"duplicates": 3}},
        **{"num_relations": len(names), "num_edges_by_relation": dict.fromkeys(names, 7)},
        **{"num_entities": {"node": [30, 30], names[1]: [4]}, "num_entities_outside_train": {"node": 2}},
        "edges_by_bucket": {"train": {"partitions_a_cell": 1, "counts": [[10, 0], [3, 40]]}},
        "buckets": {"train": buckets_of_train},
        "degree_histogram": {"node": [[0, 0, 2], [1, 1, 20], [2, 3, 8], [4, 7, 1]]},
        "train_degree": {"node": {"min": 0, "p50": 1, "max": 5}},
        "highest_degrees": {"node": [[5, name] for name in names]},
    }
    ranks, edges = {"mrr": 0.2, "hits@10": 0.4, "mean_rank": 12.5}, {"num_edges": 88}
    metrics = ranks | {f"{name}_pessimistic": value for name, value in ranks.items()} | edges
    before = {"split": "test", "filtered": True, "metrics": ranks | edges | {"mrr": 0.15}}
    simple = {"mrr": 0.05, "hits@10": 0.1, "mean_rank": 25.0}
    bins = [{"answers": 150, "probability": p, "true": p + 0.01} for p in (0.02, 0.4)]
    best = {"num_answers": 300, "true": 0.1, "ece": 0.0123, "brier": 0.08, "brier_base_rate": 0.09}
    fitted = {"fitted_on": "valid", "measured_on": "test", "num_queries": 40}
    evaluate = {
        **(before | {"status": "done", "seconds": 0.5, "metrics": metrics}),
        "baselines": {"most_popular": simple, "random": simple | {"mrr": 0.01}},
        "calibration": fitted | {"top_10": best | {"reliability": bins}},
        "metrics_by_relation": [{"relation": name} | SIDES for name in names],
        "metrics_by_degree": [{"first": 0, "last": 0} | SIDES, {"first": 3, "last": None} | SIDES],
    }
    train = {
        **{"status": "done", "seconds": 3.0, "num_epochs": 3, "loss": 0.6, "edges_per_s": 200},
        "epochs": epochs,
        "validation": [{"epoch": epoch, "version": epoch, "mrr": 0.1 * epoch} for epoch in (1, 3)],
        "members": [{"seed": 2**62 + place, "loss": 0.6, "validation_mrr": 0.3} for place in (0, 1)],
    }
    remap = {"status": "done", "seconds": 0.1}
    return {
        **{"status": "done", "command": ["pipeline.py", names[0]], "versions": {"graphmill": "0"}},
        **{"started": "2026-01-02T03:04:05+00:00", "finished": "2026-01-02T03:04:15+00:00"},
        "config": {"input": names[0], "dimension": 8, "relations": [{"name": names[1], "lhs": "node"}]},
        "stages": {"etl": etl, "train": train, "evaluate": evaluate, "remap": remap},
        "metrics": metrics,
        "before": before,
    }


def write_run(folder: Path, content: dict[str, Any]) -> Path:
    """Write run.json, and embeddings of the type `node`, which begins with the hostile ids."""
    rng = np.random.default_rng(5)
    ids = [*HOSTILE, *(f"n{number}" for number in range(60 - len(HOSTILE)))]
    for partition in range(2):
        with remapped.new_part(str(folder / "embeddings"), "node", partition, 8) as part:
            part.append(pa.array(ids[partition::2]), rng.normal(size=(30, 8)).astype(np.float32))
    (folder / "run.json").write_text(json.dumps(content))
    return folder


CHARTS = {
    "overview": ["time"],
    "etl": ["rows", "entities", "partitions", "relations", "buckets", "degrees"],
    "training": ["loss", "mrr", "validation", "edges_per_s", "waits", "swaps", "memory"],
    "ranking": ["baselines", "relations", "degrees"],
    "probabilities": ["reliability"],
    "vectors": ["map-8"],
}
EXPECTED = [f"chart-{section}-{name}" for section, names in CHARTS.items() for name in names]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path, record())


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_run(tmp_path_factory.mktemp("run"), record())
    return Path(report.write(graphmill.open(str(folder))))


def markup_of(page: Path) -> str:
    """The page without the content of its scripts."""
    return re.sub(r"(<script[^>]*>).*?</script>", r"\1", page.read_text(), flags=re.S)


def text_of(page: Path) -> str:
    return html.unescape(re.sub(r"<[^>]*>", " ", markup_of(page)))


def test_the_page_shows_run_json_and_the_embeddings(page: Path) -> None:
    words = text_of(page)
    for expected in (
        *("1,000", "0.2", "p50", "most popular", "run before", "all equal first"),
        "Good: the MRR of 0.2 is 4 times that of the most popular, and 20 times that of chance. "
        "The run before was worse, with 0.15.",
        *("fitted on valid, measured on test", "0.0123", "lhs random", "2 node", "version -"),
        *("A map of 60 embeddings", str(2**62 + 1)),
    ):
        assert expected in words
    for hostile in HOSTILE:
        assert hostile in words  # as text: among the ids with most edges, and the relations
    assert re.findall(r'id="(chart-[^"]*)"', page.read_text()) == EXPECTED


def test_the_page_is_one_small_file_that_loads_no_other(page: Path) -> None:
    text = page.read_text()
    assert len(text) < 3_000_000
    assert "default-src &#39;none&#39;" in text
    own = text[: text.index('<script type="application/json"')]
    assert not re.search(r'(src|href)="(?!#|data:)', own)
    assert markup_of(page).count("<script") == 3
    assert "<img" not in markup_of(page)


def test_the_same_run_gives_the_same_bytes(page: Path, forked: Forks) -> None:
    first = page.read_text()
    assert render(report.page_of(graphmill.open(str(page.parent)))) == first
    page.unlink()
    forked("graphmill", "report", page.parent)
    assert page.read_text() == first


def test_a_browser_draws_every_chart_without_messages_within_the_width(page: Path) -> None:
    shown = show(page)
    assert (shown.console, shown.num_charts) == ([], len(EXPECTED))
    assert "owned" not in re.search(r"<title>(.*?)</title>", shown.dom, re.S)[1]
    probed = show_probed(page, "--blink-settings=preferredColorScheme=0", "--window-size=400,800")
    assert probed.probe == {"drawn": EXPECTED, "overflows": False, "scrolls": []}


def test_a_run_that_failed_and_a_type_without_entities(tmp_path: Path) -> None:
    content = record() | {"status": "failed", "error": "RawTableError: <b>row 7</b> is bad"}
    content["stages"]["etl"] = {"status": "failed", "error": "RawTableError: row 7 is bad"}
    write_run(tmp_path, content)
    with remapped.new_part(str(tmp_path / "embeddings"), "nobody", 0, 8) as part:
        part.append(pa.array([], pa.string()), np.empty((0, 8), np.float32))
    page = Path(report.write(graphmill.open(str(tmp_path))))
    words = text_of(page)
    assert "The run failed in etl." in words
    assert "RawTableError: <b>row 7</b> is bad" in words
    assert "could not be made" not in words
    assert "chart-vectors-map-8" in page.read_text()


def paths(content: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    parts = content if isinstance(content, dict) else {}
    if isinstance(content, list):
        parts = dict(enumerate(content))
    return [path, *(each for key, child in parts.items() for each in paths(child, (*path, key)))]


# Without those of what must be an object.
PATHS = [path for path in paths(record()) if len(path) > 1 and path[:-1] != ("stages",)]
ANYTHING = st.none() | st.floats() | st.integers() | st.text(max_size=3) | st.sampled_from([[], {}, [{}]])


@pytest.mark.slow
@settings(max_examples=4)
@given(st.lists(st.tuples(st.sampled_from(PATHS), ANYTHING), min_size=1, max_size=12))
def test_any_content_of_run_json_gives_a_report(tmp_path: Path, changes: list[tuple[Any, Any]]) -> None:
    content = copy.deepcopy(record())
    for path, value in changes:
        node: Any = content
        with suppress(LookupError, TypeError):  # an earlier change has taken the place away
            for key in path[:-1]:
                node = node[key]
            node[path[-1]] = value
    (tmp_path / "run.json").write_text(json.dumps(content))
    assert "</html>" in render(report.page_of(graphmill.open(str(tmp_path))))


def test_a_failing_report_fails_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    chosen = config.from_mapping(GRAPH | {"output": str(tmp_path)})
    (tmp_path / "run.json").write_text("{")
    write_report(str(tmp_path / "run.json"), chosen)
    assert "report: none was written: FormatError" in caplog.text
    assert not (tmp_path / "report.html").exists()


def test_a_page_of_another_stays(folder: Path) -> None:
    (folder / "report.html").write_text("of another")
    with pytest.raises(FormatError, match=r"report\.html: .* found another's file; move it away"):
        report.write(graphmill.open(str(folder)))


def test_blocks_say_what_is_good_and_axes_are_linear_or_say_so(page: Path) -> None:
    sections = report.page_of(graphmill.open(str(page.parent))).sections
    blocks = [each for section in sections for each in section.blocks if isinstance(each, Chart | PageTable)]
    assert len(blocks) > 20
    for block in blocks:
        assert re.search(r"\b([Gg]ood|Fair|Bad|usual)\b.*\.$", block.note), block.title
        if isinstance(block, Chart):
            drawn = to_json(block.plot, "chart")
            assert drawn.count('"name":"LogAxis"') == drawn.count("(log scale)"), block.title


def test_what_has_no_content_has_no_card(folder: Path) -> None:
    content = record()
    content["stages"]["etl"] |= {"highest_degrees": {}, "buckets": {}, "num_edges_by_relation": {}}
    content["stages"]["evaluate"] |= {"baselines": {}, "metrics_by_relation": [], "metrics_by_degree": []}
    for epoch in content["stages"]["train"]["epochs"]:
        epoch |= {"swap_wait_s": 0.0, "partitions_read": 0, "partitions_written": 0, "peak_bytes": math.nan}
    content.pop("before")
    (folder / "run.json").write_text(json.dumps(content))
    text = Path(report.write(graphmill.open(str(folder)))).read_text()
    charts = set(re.findall(r'id="chart-([^"]*)"', text))
    left_out = {"etl-relations", "training-waits", "training-swaps", "ranking-relations", "ranking-degrees"}
    left_out |= {"ranking-baselines", "training-memory"}  # memory is not a number: cannot be drawn
    assert charts == {each.removeprefix("chart-") for each in EXPECTED} - left_out
    assert text.count("<figure") == len(charts)
    assert "<tbody>\n</tbody>" not in text
    assert "Ids with most train edges" not in text
    assert json.loads(re.search(r'id="charts">(.*?)</script>', text, re.S)[1])
    for most, is_log in ((50, False), (51, True)):
        content["stages"]["etl"]["num_edges_by_relation"] = {"a": most, "b": 1}
        (folder / "run.json").write_text(json.dumps(content))
        sections = report.page_of(graphmill.open(str(folder))).sections
        charts = [each for of in sections for each in of.blocks if isinstance(each, Chart)]
        (chart,) = (each for each in charts if each.title == "Edges of each relation")
        assert ("(log scale)" in to_json(chart.plot, "chart")) == is_log


def test_people_who_miss_one_of_three_colours_tell_the_colours_apart() -> None:
    """Simulates the three kinds; Machado, Oliveira and Fernandes, 2009."""
    kinds = {
        "none": [1, 0, 0, 0, 1, 0, 0, 0, 1],
        "red": [0.1523, 1.0526, -0.2049, 0.1145, 0.7863, 0.0992, -0.0039, -0.0481, 1.052],
        "green": [0.3673, 0.8606, -0.228, 0.2801, 0.6725, 0.0474, -0.0118, 0.0429, 0.9689],
        "blue": [1.2555, -0.0767, -0.1788, -0.0784, 0.9308, 0.1476, 0.0047, 0.6914, 0.3039],
    }
    # Oklab, Ottosson 2020
    to_lms = np.array([[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6299]])
    to_lab = np.array([[0.2105, 0.7936, -0.0041], [1.978, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]])
    codes = [*COLOURS, REST]
    rgb = np.array([[int(code[at : at + 2], 16) / 255 for at in (1, 3, 5)] for code in codes])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    for kind, matrix in kinds.items():
        seen = np.clip(linear @ np.reshape(matrix, (3, 3)).T, 0, 1)
        lab = np.cbrt(seen @ to_lms.T) @ to_lab.T
        far = np.linalg.norm(lab[:, None] - lab[None], axis=2) + np.eye(len(codes))
        assert far.min() > 0.07, (kind, far.min())


def two_runs(folder: Path) -> list[Run]:
    one, two = record(), copy.deepcopy(record())
    two["config"]["dimension"] = 16
    two["metrics"]["mrr"] = two["stages"]["evaluate"]["metrics"]["mrr"] = 0.3
    two["metrics"]["mean_rank"] = 20.0
    two["metrics"]["of_edges"] = 2 * one["metrics"].setdefault("of_edges", 100)  # neither is better
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
    (chart,) = (block for block in blocks if isinstance(block, Chart) and block.name == "degrees")
    assert to_json(chart.plot, "chart").count('["0.35","0.35"]') == 2  # the mean of both sides' edges


def test_runs_that_ranked_other_edges_hardly_compare(tmp_path: Path) -> None:
    def warnings(*runs: Run) -> list[str]:
        return [block.text for block in page_of_runs(runs).sections[0].blocks if isinstance(block, Note)]

    one, two = two_runs(tmp_path)
    assert not warnings(one, two)
    evaluated = two.stages["evaluate"]
    others = {"split": "valid"}, {"filtered": False}, {"itself": "left out"}, {"metrics": {"num_edges": 5}}
    for changes in others:
        two.record["stages"]["evaluate"] = evaluated | changes
        assert warnings(one, two) == ["The runs ranked other edges, or in another way; compare with care."]
    two.record["stages"]["evaluate"] = {}
    assert not warnings(one, two)


def test_a_browser_draws_the_comparison(tmp_path: Path) -> None:
    target = tmp_path / "comparison.html"
    report.write_comparison(two_runs(tmp_path), str(target))
    shown = show(target)
    assert (shown.console, shown.num_charts) == ([], 6)


def test_notes_and_bars_by_hand() -> None:
    assert _rows_note({"num_rows": 100, "num_rows_quarantined": 2}).startswith("Bad: 2 of 100")
    assert _rows_note({"num_rows": 100, "num_rows_quarantined": 1}).startswith("Good: only 1")
    sizes = {"file_bytes": 10, "table_bytes": 10, "float32_bytes": 40, "num_rows": 1}
    (table,) = exports([{"types": {"user": sizes}}])
    assert table.rows[0][table.columns.index("of float32")] == "50.0 %"
    (chart,) = bars("b", "B", "b", ["$$x$$", "y"], {"b": [0, 5]}, note="", scale="log")
    drawn = to_json(chart.plot, "chart")
    assert "$$" not in drawn  # TeX, for which Bokeh would fetch a library
    assert '["value",[2.5,5]]' in drawn  # a log axis has no zero


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
