"""report.html: its content, and its looks in a browser."""

import copy
import json
import re
import subprocess
import sys
from contextlib import suppress
from html.parser import HTMLParser
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
from graphmill.formats import remapped
from graphmill.report.page import render
from graphmill.report.section_vectors import project
from tests.graphmill.report.browser import show, show_probed
from tests.graphmill.report.runs import CHARTS, HOSTILE, record, write_run

EXPECTED = [f"chart-{section}-{name}" for section, names in CHARTS.items() for name in names]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path, record())


@pytest.fixture
def page(folder: Path) -> Path:
    return Path(report.write(graphmill.open(str(folder))))


class Text(HTMLParser):
    """The text of the page without its scripts, and its tags."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, text: str) -> None:
        if self.tags[-1:] != ["script"]:
            self.words.append(text)


def read(page: Path) -> Text:
    text = Text()
    text.feed(page.read_text())
    return text


def test_the_page_shows_run_json_and_the_embeddings(page: Path) -> None:
    words = " ".join(read(page).words)
    for expected in (
        "1,000",
        "0.2",
        "p50",
        "ties count half",
        "2 node",
        "version -",
        "A map of 60 embeddings",
    ):
        assert expected in words
    for hostile in HOSTILE:
        assert hostile in words  # as text: among the ids with most edges, and the relations
    assert re.findall(r'id="(chart-[^"]*)"', page.read_text()) == EXPECTED


def test_a_type_without_entities_removes_no_section(folder: Path) -> None:
    with remapped.new_part(str(folder / "embeddings"), "nobody", 0, 8) as part:
        part.append(pa.array([], pa.string()), np.empty((0, 8), np.float32))
    page = Path(report.write(graphmill.open(str(folder))))
    assert "could not be made" not in page.read_text()
    assert "chart-vectors-map-8" in page.read_text()


def test_the_page_is_one_small_file_that_loads_no_other(page: Path) -> None:
    text = page.read_text()
    assert len(text) < 3_000_000
    assert "default-src &#39;none&#39;" in text
    own = text[: text.index('<script type="application/json"')]
    assert not re.search(r'(src|href)="(?!#|data:)', own)
    assert read(page).tags.count("script") == 3
    assert "img" not in read(page).tags


@pytest.mark.slow
def test_the_same_run_gives_the_same_bytes(folder: Path) -> None:
    run = graphmill.open(str(folder))
    first = render(report.page_of(run))
    assert render(report.page_of(graphmill.open(str(folder)))) == first
    program = "import graphmill, sys; from graphmill import report; report.write(graphmill.open(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", program, str(folder)], check=True)
    assert (folder / "report.html").read_text() == first


def test_a_browser_draws_every_chart_without_messages(page: Path) -> None:
    shown = show(page)
    assert shown.console == []
    assert shown.num_charts == len(EXPECTED)
    assert "owned" not in re.search(r"<title>(.*?)</title>", shown.dom, re.S)[1]  # type: ignore[index]


@pytest.mark.parametrize("scheme", [0, 1], ids=["dark", "light"])
def test_a_phone_draws_every_chart_within_its_width(page: Path, scheme: int) -> None:
    shown = show_probed(page, f"--blink-settings=preferredColorScheme={scheme}", "--window-size=390,800")
    assert shown.probe == {"drawn": EXPECTED, "overflows": False}


def test_a_run_that_failed_says_where_and_why(tmp_path: Path) -> None:
    content = record()
    content |= {"status": "failed", "error": "RawTableError: <b>row 7</b> is bad"}
    content["stages"] = {"etl": {"status": "failed", "error": "RawTableError: row 7 is bad"}}
    (tmp_path / "run.json").write_text(json.dumps(content))
    page = Path(report.write(graphmill.open(str(tmp_path))))
    words = " ".join(read(page).words)
    assert "The run failed in etl." in words
    assert "RawTableError: <b>row 7</b> is bad" in words


def paths(content: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = (
        content.items()
        if isinstance(content, dict)
        else enumerate(content)
        if isinstance(content, list)
        else ()
    )
    return [path, *(each for key, child in children for each in paths(child, (*path, key)))]


PATHS = [path for path in paths(record()) if len(path) > 1]
ANYTHING = (
    st.none() | st.floats() | st.integers() | st.text(max_size=3) | st.just([]) | st.just({}) | st.just([{}])
)


@pytest.mark.slow
@settings(max_examples=8)
@given(st.lists(st.tuples(st.sampled_from(PATHS), ANYTHING), min_size=1, max_size=6))
def test_any_content_of_run_json_gives_a_report(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[tuple[Any, ...], Any]]
) -> None:
    content = copy.deepcopy(record())
    for path, value in changes:
        node: Any = content
        with suppress(LookupError, TypeError):  # an earlier change has taken the place away
            for key in path[:-1]:
                node = node[key]
            node[path[-1]] = value
    folder = tmp_path_factory.mktemp("run")
    (folder / "run.json").write_text(json.dumps(content))
    assert "</html>" in render(report.page_of(graphmill.open(str(folder))))


def test_a_failing_report_fails_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    chosen = config.from_mapping(
        {
            "output": str(tmp_path),
            "dimension": 2,
            "entities": {"a": {"num_partitions": 1}},
            "relations": [{"name": "r", "lhs": "a", "rhs": "a"}],
        }
    )
    (tmp_path / "run.json").write_text("{")
    write_report(str(tmp_path / "run.json"), chosen)
    assert "report: none was written: FormatError" in caplog.text
    assert not (tmp_path / "report.html").exists()


def test_the_map_shows_the_principal_components(rng: np.random.Generator) -> None:
    axes = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    spread = np.array([9.0, 4.0, 1.0, 0.5, 0.1, 0.1])
    vectors = (rng.normal(size=(4000, 6)) * spread) @ axes.T + 3
    place, share = project(vectors.astype(np.float32))
    np.testing.assert_allclose(place.std(axis=0), spread[:2], rtol=0.05)
    np.testing.assert_allclose(share, (81 + 16) / (spread**2).sum(), rtol=0.02)
    assert (place[np.abs(place).argmax(axis=0), [0, 1]] > 0).all()
