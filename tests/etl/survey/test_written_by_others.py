"""`graphmill init` on tables as other systems write them: the stage, run as it says, reads their edges."""

import csv
import datetime
import json
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import Generator

from etl.survey import outlook
from etl.survey.dialect import dialect_of
from etl.survey.outlook import estimate, estimate_distinct
from etl.tables.check_rows import Rules
from etl.tables.data_file import plain_file
from etl.tables.files import find_files
from etl.tables.ranges import find_ranges
from etl.tables.read import read_blocks
from graphmill.ask.evaluate import job as evaluation
from graphmill.cli.main import init as command
from graphmill.config import Config, defaults, from_mapping, load, yaml_text
from graphmill.config.sections.etl import EtlConfig, TableConfig
from graphmill.errors import GraphMillError, RawTableError
from graphmill.run.auto_values import with_sizes
from tests import REPOSITORY
from tests.etl.graphs import config_of, write_parquet
from tests.etl.tables.lakes import iceberg_table, root_of

Edge = tuple[str, str, str]
DEBIAN = REPOSITORY / "demo" / "debian"


def text_of(*tables: Path, options: Sequence[str] = ()) -> tuple[str, str]:
    """Run `init`; return what it writes, and what it tells."""
    result = CliRunner().invoke(command, [*map(str, tables), *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def settings_of(text: str) -> Config:
    filled, chosen = defaults.applied(yaml_text.parsed(text, "init"))
    return from_mapping(filled).with_chosen(chosen)


def written(*tables: Path) -> dict[str, Any]:
    """The configuration for the tables, parsed."""
    text, _ = text_of(*tables)
    settings_of(text)
    return dict(yaml_text.parsed(text, "init"))


def write(path: Path, head: Sequence[str], rows: Iterable[Sequence[object]], delimiter: str = ",") -> Path:
    """A file of csv; without names of columns where `head` is empty."""
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, delimiter=delimiter)
        lines.writerows([head, *rows] if head else rows)
    return path


def edges_read(settings: Config) -> Counter[Edge]:
    """The edges that etl reads: lhs, relation, rhs; none of its rows is bad."""
    edges: Counter[Edge] = Counter()
    names = None if settings.dynamic_relations else tuple(each.name for each in settings.relations)
    for table in settings.section(EtlConfig).tables:
        for file in find_files(settings, table).files():
            for file_range in find_ranges(table, file, 1000):
                for rows, bad in read_blocks(file_range, 1000, Rules(relations=names, quarantines=True)):
                    assert not bad
                    edges.update(_edges(table, rows.to_pydict()))
    return edges


def _edges(table: TableConfig, rows: dict[str, list[str]]) -> Iterable[Edge]:
    names = rows.get("relation", [table.relation or ""] * len(rows["lhs"]))
    return zip(rows["lhs"], names, rows["rhs"], strict=True)


def check(path: Path, expected: Iterable[Edge], *options: str) -> tuple[str, str]:
    text, told = text_of(path, options=options)
    assert edges_read(settings_of(text)) == Counter(expected)
    return text, told


def pairs(rng: Generator, num: int = 300, most: int = 40) -> list[tuple[str, str]]:
    return [(f"a{a}", f"b{b}") for a, b in rng.integers(0, most, (num, 2)).tolist()]


def test_ids_that_begin_like_comments_are_ids(tmp_path: Path) -> None:
    rows = [(f"#tag{at % 7}" if at % 3 else f"u{at % 5}", f"#t{at % 11}") for at in range(90)]
    path = tmp_path / "tags.tsv"
    path.write_text("".join(f"{a}\t{b}\n" for a, b in [("#tag1", "#t1"), *rows]))
    check(path, [(a, "tags", b) for a, b in [("#tag1", "#t1"), *rows]])


def test_json_of_apoc(tmp_path: Path, rng: Generator) -> None:
    ids = rng.integers(0, 30, (200, 2)).tolist()
    triples = [(str(a), "KNOWS" if a % 3 else "LIKES", str(b)) for a, b in ids]
    user: dict[str, Any] = {"labels": ["User"]}
    rows = [user | {"type": "node", "id": str(n), "properties": {"name": f"n{n}"}} for n in range(30)]
    for at, (a, r, b) in enumerate(triples):
        about = {"id": str(at), "type": "relationship", "label": r, "properties": {"since": 1993}}
        rows.append(about | {"start": user | {"id": a}, "end": user | {"id": b}})
    path = tmp_path / "all.json"
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    text, told = check(path, triples)
    assert 'filters: [["type", "==", "relationship"]]' in text
    assert "start.id -> end.id, relations: label" in told


def test_no_end_tells_which_rows_are_edges(tmp_path: Path) -> None:
    """Another id may get its first edge tomorrow."""
    path = tmp_path / "friends.csv"
    write(path, ["source", "target"], [*(("a", f"t{n}") for n in range(20)), ("b", None), ("c", None)])
    assert "filters: [[" not in text_of(path)[0]


@pytest.mark.parametrize("is_told", [True, False])
def test_types_beside_the_ends(tmp_path: Path, rng: Generator, is_told: bool) -> None:
    """Numbers of genes and of drugs are alike: without their types they would be one entity."""
    kinds = [("gene", "binds", "gene"), ("drug", "treats" if is_told else "binds", "gene")]
    ids = rng.integers(0, 30, (300, 2)).tolist()
    rows = [(a, kinds[at % 2][0], kinds[at % 2][1], b, "gene") for at, (a, b) in enumerate(ids)]
    path = tmp_path / "primekg.csv"
    write(path, ["x_id", "x_type", "relation", "y_id", "y_type"], rows)
    name = "{r}" if is_told else "{lt}-{r}-{rt}"
    edges = [(str(a), name.format(lt=lt, r=r, rt=rt), str(b)) for a, lt, r, b, rt in rows]
    text, told = check(path, edges)
    settings = settings_of(text)
    types = {each.name: (each.lhs, each.rhs) for each in settings.relations}
    assert set(types.values()) == {("gene", "gene"), ("drug", "gene")}
    assert "not sure of x_type, y_type: types of ids" in told
    (num_edges,) = re.findall(r"# for about (\d+) edges", text)
    assert 270 <= int(num_edges) <= 300  # each row counts once, whatever number of entries reads it


def test_folders_that_name_relations_or_an_end(tmp_path: Path, rng: Generator) -> None:
    """A sample has rows of one file, and the folders of all."""
    edges = []
    for relation in ("binds", "treats"):
        folder = tmp_path / f"graph/relation={relation}"
        folder.mkdir(parents=True)
        rows = [(a, ("gene", "drug")[a % 2], b, "gene") for a, b in rng.integers(0, 30, (300, 2)).tolist()]
        write(folder / "a.csv", ["x_id", "x_type", "y_id", "y_type"], rows)
        edges += [(str(a), kind, relation, str(b)) for a, kind, b, _ in rows]
    (tmp_path / "graph/relation=binds/0.csv").touch()  # of a writer that had no rows
    check(tmp_path / "graph", [(a, f"{kind}-{relation}-gene", b) for a, kind, relation, b in edges])
    ends = ("--lhs", "x_id", "--rhs", "relation")
    check(tmp_path / "graph", [(a, "graph", relation) for a, _, relation, _ in edges], *ends)


def test_a_file_that_is_not_like_the_largest_is_named(tmp_path: Path, rng: Generator) -> None:
    paths = [tmp_path / f"{at:02}.csv" for at in range(outlook.MAX_HEADS + 1)]
    for odd in (paths[0], paths[-1]):
        for path in paths:
            write(path, ["user", "item"], pairs(rng) if path != odd else [("a", "b")])
        odd.write_text(odd.read_text().replace("item", "day"))
        with pytest.raises(RawTableError, match=rf"{odd.name}: expected a column 'item'.*\['user', 'day'\]"):
            text_of(tmp_path)


def test_names_of_columns_over_one_row_of_numbers(tmp_path: Path) -> None:
    check(write(tmp_path / "t.csv", ["foo", "bar"], [(1, 2)]), [("1", "t", "2")])


@pytest.mark.slow
def test_a_split_by_time_is_written_as_a_comment(tmp_path: Path, rng: Generator) -> None:
    rows = pairs(rng)
    frame = pd.DataFrame(rows, columns=["user", "film"])
    for name, times in {
        "timestamp": np.arange(300) + 1_700_000_000,
        "day": pd.date_range("2026-01-01", periods=300),
    }.items():
        path = tmp_path / f"{name}.csv"
        frame.assign(**{name: times}).to_csv(path, index=False)
        text, _ = text_of(path)
        head, tables, tail = re.split(r"    # \w+ looks like time.*\n.*flatters:\n|  on_bad_row", text)
        head = head[: head.index("    - path")]
        text = head + re.sub("(?m)^    # ", "    ", tables) + "  on_bad_row" + re.sub(" *holdout.*", "", tail)
        settings = settings_of(text)
        train, test = settings.section(EtlConfig).tables
        assert (train.split, test.split) == ("train", "test")
        assert edges_read(settings) == Counter((a, name, b) for a, b in rows)
        assert test.filters[0][0][2] == (1_700_000_285 if name == "timestamp" else "2026-10-13")
    frame.assign(day=pd.date_range("2026-01-01", periods=300).strftime("%d/%m/%Y")).to_csv(path, index=False)
    assert "looks like time" not in text_of(path)[0]  # text in another order


def test_ids_that_became_fractions_are_named_with_the_way_out(tmp_path: Path) -> None:
    frame = pd.DataFrame({"user_id": [1, 2, None, 2] * 20, "film": ["x", "y", "z", "y"] * 20})
    for path in (tmp_path / "seen.csv", tmp_path / "seen.parquet"):
        (frame.to_csv if path.suffix == ".csv" else frame.to_parquet)(path, index=False)
        with pytest.raises(RawTableError, match=r'user_id has whole numbers as fractions.*astype\("Int64"\)'):
            text_of(path)


def test_decimals_and_uuids_are_ids(tmp_path: Path, rng: Generator) -> None:
    """A NUMBER of Oracle is a decimal without a fraction."""
    rows = rng.integers(0, 30, (200, 2)).tolist()
    users = pa.array([a for a, _ in rows]).cast(pa.decimal128(38, 0))
    films = [uuid.UUID(int=b) for _, b in rows]
    columns = {"user": users, "film": pa.array([each.bytes for each in films], pa.uuid())}
    path = Path(write_parquet(tmp_path / "seen.parquet", **columns))
    check(path, [(str(a), "seen", str(b)) for (a, _), b in zip(rows, films, strict=True)])


@pytest.mark.slow
def test_a_file_of_another_format_is_known_by_its_bytes(tmp_path: Path, rng: Generator) -> None:
    rows = pairs(rng)
    path = tmp_path / "links.csv"
    pd.DataFrame(rows, columns=["source", "target"]).to_parquet(path)
    assert "format: parquet" in check(path, [(a, "links", b) for a, b in rows])[0]
    table = TableConfig(path=(str(path),), lhs="source", rhs="target", relation="r")
    with pytest.raises(RawTableError, match=r"links\.csv: .* first bytes of parquet; set .*format: parquet"):
        find_ranges(table, plain_file(str(path)), 1000)
    path = tmp_path / "links.edges"  # no format has this suffix
    path.write_text("".join(f"{a} {b}\n" for a, b in rows))
    assert "format: csv" in check(path, [(a, "links", b) for a, b in rows])[0]


@pytest.mark.slow
def test_one_odd_cell_does_not_overturn_a_header(tmp_path: Path, rng: Generator) -> None:
    rows = pairs(rng)
    path = tmp_path / "links.csv"
    for header in ("source,target", "source,a very: long / name? of a column they say!"):
        path.write_text("\n".join([header, *(f"{a},{b}" for a, b in rows), "source,b1"]) + "\n")
        check(path, [*((a, "links", b) for a, b in rows), ("source", "links", "b1")])
    numbers = rng.integers(0, 50, (300, 2)).astype(str).tolist()
    path.write_text("\n".join(["u,v", *(f"{a},{b}" for a, b in numbers), "u,3"]) + "\n")
    check(path, [*((a, "links", b) for a, b in numbers), ("u", "links", "3")])


IDS = st.text("fgjkl", min_size=1, max_size=3)


@pytest.mark.slow
@settings(max_examples=40)
@given(st.lists(st.tuples(IDS, IDS), min_size=30, max_size=60), st.sampled_from("\t,;|"), st.booleans())
def test_what_the_dialect_says_is_what_etl_reads(tmp_path_factory, rows, delimiter, has_header):
    """Rows are never lost: a first row that occurs again is none of names."""
    rows = [*rows, rows[0]]
    path = tmp_path_factory.mktemp("dialect") / "t.txt"
    lines = [("source_id", "target_id")] * has_header + rows
    path.write_text("".join(f"{a}{delimiter}{b}\n" for a, b in lines))
    options = dialect_of(str(path), plain_file(str(path))).options
    assert (options.delimiter or "\t") == delimiter
    columns = {"lhs": "source_id", "rhs": "target_id"} if has_header else {"lhs": 0, "rhs": 1}
    assert options.header == has_header
    table = TableConfig(**dict(options) | columns | {"relation": "r"})
    (file_range,) = find_ranges(table, plain_file(str(path)), 1000)
    blocks = [good.to_pydict() for good, _ in read_blocks(file_range, 1000, Rules())]
    assert [edge for each in blocks for edge in _edges(table, each)] == [(a, "r", b) for a, b in rows]


def test_comments_show_the_values_that_run(tmp_path: Path, rng: Generator) -> None:
    path = tmp_path / "ratings.csv"
    write(path, ["user", "film"], pairs(rng, 3000))
    text, _ = text_of(path)
    settings = settings_of(text)
    size = estimate(settings).size
    counts = {name: (count,) for name, count in size.num_entities.items()}
    ran = with_sizes(settings, counts, size.num_edges["train"])
    shown: dict[str, Any] = {key: float(value) for key, value in re.findall(r"# (\w+): ([\d.]+) +#", text)}
    assert shown == {key: getattr(ran, key) for key in ("dimension", "num_epochs", "batch_size", "lr")}


class Form(NamedTuple):
    """A file as a system writes it, or the site of a graph has it."""

    name: str
    row: str
    edge: str = ""
    """Lhs, relation and rhs of the row; default a, the file's name, b."""
    head: str = ""
    said: str = ""
    options: str = ""


_SNAP = "# Directed graph (each unordered pair of nodes is saved once): Wiki-Vote.txt\n# Nodes: 7115\n"
_OF_CONCEPTNET = '{{"dataset": "/d/wiktionary", "sources": [{{"contributor": "/s/{n}"}}], "weight": 1.0}}'
_FLIGHTS = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,carrier,flight,tailnum,origin,"
    "dest,air_time,distance,hour,minute,time_hour\n"
)
_FLIGHT = (  # of nycflights13, of which pandas has made fractions
    "2013,{r},{r},{a}.0,{b},{r}.0,{b}.0,{a},U{r},{n},N{b}UA,{A},{B},{b}.0,{a},{r},{r},2013-01-{r:02}T10:00:00Z"
)
FORMS = [
    Form("ratings.dat", "{a}::{b}::{r}::97830{n:04}"),
    Form("u.data", "{a}\t{b}\t{r}\t88125{n:04}"),
    Form("gowalla.txt", "{a}\t2010-10-19T23:55:{r:02}Z\t30.{n}\t-97.{n}\t{b}"),
    Form(
        "x.nt",
        "<http://x/{a}> <http://p/{r}> <http://y/{b}> .",
        "<http://x/{a}> <http://p/{r}> <http://y/{b}>",
    ),
    Form("hetionet.sif", "Gene::{a}\tG{r}\tDisease::{b}", "Gene::{a} G{r} Disease::{b}"),
    Form("e.jsonl", '{{"user": {{"id": {a}}}, "item": "i{b}", "tags": ["x"], "n": {n}.5}}', "{a} e i{b}"),
    Form("wiki.txt", "{a}\t{b}", head=_SNAP, said='comment: "#"'),
    Form("konect.txt", "{a} {b}", head="% asym positive\n% 400 60 60\n"),
    Form(
        *("neptune.csv", "e{n},a{a},b{b},R{r},0.5", "a{a} R{r} b{b}"),
        *("~id,~from,~to,~label,weight:Double\n", ": sure"),
    ),
    Form("neo4j.csv", "a{a},b{b},R{r}", "a{a} R{r} b{b}", ":START_ID,:END_ID,:TYPE\n", ": sure"),
    Form("kgtk.tsv", "e{n}\ta{a}\tR{r}\tb{b}", "a{a} R{r} b{b}", "id\tnode1\tlabel\tnode2\n", ": sure"),
    Form(
        "conceptnet.csv",
        "/a/[{n}/]\t/r/R{r}\t/c/en/a{a}\t/c/de/b{b}/n\t" + _OF_CONCEPTNET,
        "/c/en/a{a} /r/R{r} /c/de/b{b}/n",
    ),
    Form(
        *("links.csv", "g{a},gene,d{b},disease", "g{a} links d{b}"),
        head="source,source_type,target,target_type\n",
        said="source_type, target_type: types of ids, which are left out",
    ),
    Form("r.tsv", '"a{a}"\t"b{b}"\t{r}', "a{a} r b{b}", '"from"\t"to"\t"n"\n', "quoting: true"),
    Form("r.csv", '"{n}","a{a}","b{b}"', "a{a} r b{b}", '"","from","to"\n'),
    Form("pandas.csv", "{n},a{a},b{b}", "a{a} pandas b{b}", ",user,film\n"),
    Form("numbered.csv", "{n},{a},{b}", head=",0,1\n"),
    Form("weights.txt", "{a} {b} {r}", said="column 2: weights; if it has relations: --relation 2"),
    Form("weights.txt", "{a} {b} {r}", "{a} {r} {b}", options="--relation 2"),
    Form("staff.csv", "1{n:03},1{b:03}", "1{n:03} staff 1{b:03}", "id,manager_id\n"),
    Form("visits.csv", "s1,u{a},i{b}", "u{a} visits i{b}", "site_id,user_id,item_id\n"),
    Form("genes.csv", "x{b},{a},{b}", "{a} genes {b}", "sample,gene1,gene2\n"),
    Form("ref.csv", "x{n},y{n}", "x{n} ref y{n}", "foo,bar\n"),
    Form("g.csv", "a{a},b{b}", "a{a} g b{b}", "#source,target\n", "#source -> target"),
    Form("vec.csv", "a{a};[{r},2,3,4];b{b}", "a{a} vec b{b}"),
    Form("tags.csv", "a{a};b{b};x,y,z", "a{a} tags b{b}", "user;product;tags\n"),
    Form("excel.csv", "a{a};b{b}", "a{a} excel b{b}", "sep=;\nuser;product\n", 'comment: "sep="'),
    Form("codes.csv", "a{a} b{b}", "a{a} codes b{b}"),
    Form(
        *("typed.csv", "{r},{A},L{b},{r},{B}", "{r} L{b} {r}", "x_id,x_type,relation,y_id,y_type\n"),
        "x_type, y_type: types of ids, too many to write down",
    ),
    Form("flights.csv", _FLIGHT, "{A} flights {B}", _FLIGHTS, "origin -> dest, one relation: sure"),
    Form("f.csv", _FLIGHT, "N{b}UA U{r} {A}", _FLIGHTS, "", "--lhs tailnum --rhs 11 --relation carrier"),
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_rows_of_others(tmp_path: Path, rng: Generator, form: Form) -> None:
    airports = ["EWR", "JFK", "LGA", "IAH", "MIA", "BQN", "ATL", "ORD"]
    path = tmp_path / form.name
    rows = [
        {"a": a, "b": b, "r": r, "n": n, "A": airports[a % 8], "B": airports[b % 8]}
        for n, (a, b, r) in enumerate(rng.integers(0, [60, 90, 5], (300, 3)).tolist())
    ]
    path.write_text(form.head + "".join(form.row.format(**row) + "\n" for row in rows))
    words = [(form.edge or f"{{a}} {path.stem} {{b}}").format(**row).split() for row in rows]
    text, told = check(path, [(lhs, relation, rhs) for lhs, relation, rhs in words], *form.options.split())
    assert form.said in text + told
    if not form.head.startswith(("# ", "% ")):
        assert estimate(settings_of(text)).rows[f"table {path}"].startswith("about 300 rows")


# A file's name and text; options; the message.
REFUSED = [
    ("r.tsv", '"from"\t"to"\n' + '"1"\t"a"\t"b"\n' * 20, "", r"3 fields .* found 2.* row\.names = FALSE"),
    ("openke.tsv", "40\n" + "1 2 0\n3 4 1\n" * 20, "", "3 fields .* found 1.* remove a count of rows"),
    ("names.csv", "full name\n" + "Ada Lovelace\n" * 60, "", "two columns .* by hand, with its delimiter"),
    ("t.csv", "a,b\nx,y\n", "--relation c", "expected a column 'c'"),
    ("table.csv", "name,price\na,0.5\nb,1.5\n", "", "expected two columns of ids, found the columns name"),
    ("empty.csv", "", "", "expected rows, found an empty file"),
    ("beside.csv", "a,b\nx,y\n", "none.csv", r"none\.csv: no file there"),
    ("mine.yaml", "mine", f"{DEBIAN}/in_section.parquet --to", r"mine\.yaml: there is a file"),
]


@pytest.mark.parametrize(("name", "text", "options", "message"), REFUSED, ids=[name for name, *_ in REFUSED])
def test_what_is_no_graph_is_refused(tmp_path, name, text, options, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(GraphMillError, match=message):
        CliRunner().invoke(command, [*options.split(), str(tmp_path / name)], catch_exceptions=False)
    assert (tmp_path / name).read_text() == text


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "cp1252"])
def test_the_encoding_is_found(tmp_path: Path, rng: Generator, encoding: str) -> None:
    rows = [(a, f"ä{b}") for a, b in pairs(rng)]
    path = tmp_path / "links.csv"
    path.write_text("source,target\n" + "".join(f"{a},{b}\n" for a, b in rows), encoding=encoding)
    text, told = check(path, [(a, "links", b) for a, b in rows])
    assert ("not sure of encoding" in told) == (encoding == "cp1252")
    assert estimate(settings_of(text)).rows[f"table {path}"].startswith("about 300 rows")


def test_a_ratings_table_becomes_users_and_films(tmp_path: Path, rng: Generator) -> None:
    users, films = rng.integers(0, 300, 2000), rng.integers(0, 80, 2000)
    rows = [
        [f"u{user}" if at % 500 else "", f'Möbius, "{film}"', at % 5 + 1, 1_700_000_000 + at]
        for at, (user, film) in enumerate(zip(users, films, strict=True))
    ]
    found = written(write(tmp_path / "ratings.csv", ["userId", "film", "rating", "timestamp"], rows))
    assert list(found["entities"]) == ["user", "film"]
    assert found["relations"] == [{"name": "ratings", "lhs": "user", "rhs": "film", "operator": "none"}]
    (table,) = found["etl"]["tables"]
    assert (table["lhs"], table["rhs"], table["relation"]) == ("userId", "film", "ratings")
    assert found["output"] == "output/ratings"


@pytest.mark.parametrize(
    ("suffix", "delimiter"), [(".csv", ","), (".csv", "\t"), (".tsv", ";"), (".txt", "|"), (".txt", " ")]
)
def test_triples_without_a_header(tmp_path: Path, rng: Generator, suffix: str, delimiter: str) -> None:
    folder = tmp_path / "graph"
    folder.mkdir()
    for split in ("train", "valid", "test"):
        heads, tails = rng.integers(0, 100, (2, 500))
        rows = [[f"/m/{h}", f"/is/{h % 7}", f"/m/{t}"] for h, t in zip(heads, tails, strict=True)]
        write(folder / f"{split}{suffix}", [], rows, delimiter)
    found = written(folder)
    assert found["dynamic_relations"] is True
    assert list(found["entities"]) == ["entity"]
    assert "holdout" not in found["etl"]
    tables = {table.get("split", "train"): table for table in found["etl"]["tables"]}
    assert tables.keys() == {"train", "valid", "test"}
    for table in tables.values():
        assert (table["lhs"], table["relation_column"], table["rhs"]) == (0, 1, 2)
        assert table["header"] is False
        default = "," if suffix == ".csv" else "\t"
        assert table.get("delimiter", default) == delimiter


@pytest.mark.slow
def test_the_demo_graph_is_found_as_people_have_configured_it() -> None:
    found = written(*sorted(DEBIAN.glob("*.parquet")))
    by_hand = load(str(REPOSITORY / "conf" / "demo.yaml"), ["output=x"])
    assert set(found["entities"]) == set(by_hand.entities)
    ends = {(each["name"], each["lhs"], each["rhs"]) for each in found["relations"]}
    expected = {(each.name, each.lhs, each.rhs) for each in by_hand.relations}
    assert ends == expected


@pytest.mark.parametrize(("order", "options"), [(1, ()), (-1, ("--lhs", "user_id", "--rhs", "film_id"))])
def test_a_table_about_entities_is_no_table_of_edges(tmp_path, rng, order, options):
    rows = ([at, f"Film {at % 70}", 1950 + at % 60] for at in range(80))
    films = write(tmp_path / "films.csv", ["film_id", "title", "year"], rows)
    edges = rng.integers(0, 80, (900, 2)).tolist()
    seen = write(tmp_path / "seen.csv", ["user_id", "film_id"][::order], [each[::order] for each in edges])
    settings = settings_of(text_of(films, seen, options=options)[0])
    assert edges_read(settings) == Counter((str(user), "seen", str(film)) for user, film in edges)
    assert list(settings.entities) == ["user", "film"]  # numbers of users and of films are alike
    (table,) = settings.section(EtlConfig).entities
    assert (table.type, table.id) == ("film", "film_id")


def test_row_keys_floats_times_and_nested_columns_are_no_ids(tmp_path: Path) -> None:
    rows = 200
    columns = {
        "order_id": range(rows),
        "when": pd.date_range("2026-01-01", periods=rows),
        "price": np.linspace(0, 1, rows),
        "tags": [["a"]] * rows,
        "customer_id": [f"c{at % 40}" for at in range(rows)],
        "product_id": [at % 7 for at in range(rows)],
    }
    pd.DataFrame(columns).to_parquet(tmp_path / "orders.parquet")
    (found,) = written(tmp_path / "orders.parquet")["etl"]["tables"]
    assert (found["lhs"], found["rhs"]) == ("customer_id", "product_id")


def test_ends_with_common_values_are_of_one_type(tmp_path: Path, rng: Generator) -> None:
    edges = [[f"n{a}", f"n{b}", 0.5] for a, b in rng.integers(0, 50, (300, 2))]
    found = written(write(tmp_path / "links.csv", ["source", "target", "weight"], edges))
    assert list(found["entities"]) == ["entity"]
    assert found["relations"][0]["operator"] == "complex_diagonal"  # the direction counts


def test_columns_of_one_name_are_told(tmp_path: Path, rng: Generator) -> None:
    """Parquet may have such columns, which nobody can name; others are read without them."""
    (lhs, rhs), path = zip(*pairs(rng), strict=True), tmp_path / "links.parquet"
    pq.write_table(pa.table([lhs, rhs, rhs, rhs], ["user", "item", "note", "note"]), path)
    _, told = check(path, [(a, "links", b) for a, b in zip(lhs, rhs, strict=True)])
    assert "not sure of columns that share a name (note), which are left out: rename them" in told
    pq.write_table(pa.table([lhs, rhs, rhs], ["user", "item", "item"]), path)
    with pytest.raises(
        RawTableError, match=r"found the columns user \(string\); columns that share a name \(item\)"
    ):
        text_of(path)


def test_names_that_yaml_would_change(tmp_path: Path) -> None:
    rows = [[f"a{at % 9}", f"b{at % 8}"] for at in range(50)]
    for name, ends in (
        ("on", ["yes", "no: really"]),
        ("lines", ["user\n  on_bad_row: x", "timestamp"]),  # which are in comments too
        ("odd\x7f", ["user\x7f", "item\u2028\x85\ufeff"]),  # YAML refuses them, or takes them for line ends
    ):
        (table,) = written(write(tmp_path / f"{name}.csv", ends, rows))["etl"]["tables"]
        assert [table["lhs"], table["rhs"]] == ends
        assert table["relation"] == "on" or name != "on"


@pytest.mark.parametrize("scale", [1, 4, 25])
def test_the_estimate_of_distinct_values(rng: Generator, scale: int) -> None:
    """The estimator's error is at most a factor of sqrt(scale)."""
    values = rng.zipf(1.3, 50_000)
    sample = Counter(map(str, rng.choice(values, len(values) // scale, replace=False)))
    exact = len(set(values.tolist()))
    assert exact / scale**0.5 * 0.9 <= estimate_distinct(sample, scale) <= exact * scale**0.5 * 1.1
    if scale == 1:
        assert estimate_distinct(sample, scale) == exact
    assert estimate_distinct(Counter("aab"), 4) == 3


USERS, ITEMS, DAYS = np.random.default_rng(1).integers(0, [[90], [70], [3]], (3, 6000)).tolist()
SHOP = pa.table(
    {
        "user_id": [f"u{n}" for n in USERS],
        "sku": [f"i{n}" for n in ITEMS],
        "relation": ["bought", "viewed"] * 3000,
        "day": [datetime.date(2026, 11, 1 + n) for n in DAYS],
    }
)


def write_hive(folder: Path) -> Path:
    parts = ds.partitioning(pa.schema([("day", pa.date32()), ("relation", pa.string())]), flavor="hive")
    ds.write_dataset(SHOP, folder / "orders", format="parquet", partitioning=parts)
    return folder / "orders"


def write_delta(folder: Path) -> Path:
    write_deltalake(folder / "orders", SHOP, partition_by=["day", "relation"])
    return folder / "orders"


def write_iceberg(folder: Path) -> Path:
    return root_of(iceberg_table(folder, SHOP))


@pytest.mark.parametrize("write_shop", [write_hive, write_delta, write_iceberg])
def test_tables_as_sites_keep_them(tmp_path: Path, write_shop: Callable[[Path], Path]) -> None:
    path = write_shop(tmp_path)
    text, _ = text_of(path)
    found = yaml_text.parsed(text, "init")
    assert found["entities"] == {"user": {}, "sku": {}}
    (table,) = found["etl"]["tables"]
    assert table == {"path": str(path), "lhs": "user_id", "rhs": "sku", "relation_column": "relation"}
    settings = settings_of(text)
    rows = estimate(settings).rows
    assert rows[f"table {path}"].startswith("about 6,000 rows")
    assert (rows["entities, user"], rows["entities, sku"]) == ("about 90", "about 70")
    (with_filter,) = yaml_text.parsed(re.sub("# filters", "filters", text), "init")["etl"]["tables"]
    filters = None if write_shop is write_iceberg else [["day", "==", "2026-11-01"]]
    assert with_filter.get("filters") == filters


def test_an_estimate_counts_features_and_not_their_lists(tmp_path: Path) -> None:
    """Nobody ranks entities of features; tables of lists still tell the other side."""
    docs = ["a b", "b c", "c a", "a", "a b c", ""]
    write_csv = "\n".join(["doc,tag", *(f"{doc},t{number % 2}" for number, doc in enumerate(docs))])
    (tmp_path / "text.csv").write_text(write_csv + "\n")
    tags = [f"t{number % 2}" for number in range(len(docs))]
    write_parquet(tmp_path / "lists.parquet", doc=[doc.split() for doc in docs], tag=tags)
    shape: Any = {"entities": {"doc": 1, "tag": 1}, "relations": [("has", "doc", "tag")], "featurized": "doc"}
    for name in ("text.csv", "lists.parquet"):
        table = {"path": tmp_path / name, "lhs": "doc", "rhs": "tag", "relation": "has"}
        settings = config_of("/nowhere", [table], holdout={"test": 0.5}, **shape)
        found = estimate(settings)
        assert found.rows["entities, tag"] == "about 2"
        assert found.rows["entities, doc"] == "about 3" or name != "text.csv"
        assert not evaluation.estimate(settings, found.size).rows


def test_an_estimate_of_columns_in_structs_and_folders(tmp_path: Path, monkeypatch) -> None:
    """The first files stand for all."""
    monkeypatch.setattr(outlook, "MAX_HEADS", 1)
    for folder in ("kind=a/1", "kind=a/2", "kind=a/3", "kind=a/4"):
        write_parquet(tmp_path / f"{folder}.parquet", e=[{"user": "u1"}, {"user": "u2"}])
    shape: Any = {"entities": {"user": 1, "kind": 1}, "relations": [("to", "user", "kind")]}
    settings = config_of("/nowhere", [{"path": tmp_path, "lhs": "e.user", "rhs": "kind"}], **shape)
    rows = estimate(settings).rows
    assert rows[f"table {tmp_path}"].startswith("about 8 rows")
    assert (rows["entities, user"], rows["entities, kind"]) == ("about 4", "about 1")
