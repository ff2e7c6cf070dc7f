"""Bucket files in `edge_paths`, where PBG's configurations have them, among the user's own files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from distributed import Client

from etl import job
from etl.tables.files import table_roots
from graphmill import config as configuration
from graphmill import storage
from graphmill.cli.etl import command
from graphmill.cli.stages import ETL, TRAIN
from graphmill.config import Config
from graphmill.errors import ConfigError, FormatError
from graphmill.formats import edge_buckets, entity_index
from graphmill.run import fingerprints, output_checks, trained_with
from graphmill.storage import checksums
from graphmill.vocab import Bucket
from tests.commands import Command, on_cluster
from tests.etl.graphs import files_under, saved
from tests.forked import Kill

SPLITS = ("train", "valid", "test")
# PBG's example for FB15k: the tables lie in entity_path, and so do the edge paths.
FB15K = {
    "entity_path": "data/FB15k",
    "edge_paths": [f"data/FB15k/freebase-{split}_partitioned" for split in SPLITS],
    "checkpoint_path": "model/fb15k",
    "entities": {"all": {"num_partitions": 1}},
    "relations": [{"name": "all_edges", "lhs": "all", "rhs": "all", "operator": "diagonal"}],
    "dynamic_relations": True,
    "global_emb": False,
    "dimension": 4,
}
# PBG's example for LiveJournal: other files lie beside the edge paths.
LIVEJOURNAL = {
    **FB15K,
    "entity_path": "data/livejournal",
    "edge_paths": ["data/train_partitioned", "data/test_partitioned"],
}
# PBG's example of an export from SQL: one folder for all.
FROM_SQL = {**FB15K, "entity_path": "data/all", "edge_paths": ["data/all"]}
LAYOUTS = {"fb15k": FB15K, "livejournal": LIVEJOURNAL, "sql": FROM_SQL}


def settings_of(layout: str, number: int = 0, **more: Any) -> Config:
    """Graph `number` in the current folder, in PBG's layout, with its tables."""
    raw = LAYOUTS[layout]
    tables = []
    for path in raw["edge_paths"]:
        split = next((each for each in SPLITS if each in path), "train")
        file = Path(raw["entity_path"], f"{number}-{split}.txt")
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            ids = np.random.default_rng(number).integers(0, 40, (60, 2)).tolist()
            file.write_text("".join(f"{number}/{a}\t/people/r{a % 3}\t{number}/{b}\n" for a, b in ids))
        form = {"header": False, "lhs": 0, "relation_column": 1, "rhs": 2}
        tables.append({"path": str(file.absolute()), "split": split, **form})
    Path("config.py").write_text(f"def get_torchbiggraph_config():\n    return {raw | more!r}\n")
    return configuration.load("config.py", [f"etl.tables={json.dumps(tables)}"])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def own(folder: Path) -> dict[str, bytes]:
    """Files of the user in and beside all folders that a run writes."""
    train = "FB15k/freebase-train_partitioned"
    for place in (
        *("FB15k/fb15k.tgz", "FB15k/entity_index.md", "FB15k/.hidden", "FB15k/thesis/edges_0_0.h5"),
        *(f"{train}/notes.txt", f"{train}/deep/er/notes.txt"),
        *("soc-LiveJournal1.txt.gz", "train_partitioned/README", "livejournal/README"),
        *("other_partitioned/edges_0_0.h5", "other_partitioned/_SUCCESS", "all/export.sql"),
    ):
        path = Path("data", place)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine" if path.name != "_SUCCESS" else '{"mine": 1}')
    for layout in LAYOUTS:
        settings_of(layout, 0), settings_of(layout, 1)
    return files_under("data")


def written(own: dict[str, bytes]) -> dict[str, bytes]:
    """All files but the user's, after a check that these are as they were."""
    now = files_under("data")
    assert {name: now.get(name) for name in own} == own
    return {name: content for name, content in now.items() if name not in own}


def edges_of(config: Config) -> list[int]:
    return [edge_buckets.count_edges(path, Bucket(0, 0)) for path in config.edge_paths]


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_files_and_their_checksums_go_where_the_configuration_names_them_and_none_of_the_user_changes(
    near_client: Client, own: dict[str, bytes], layout: str
) -> None:
    config = settings_of(layout, 0)
    job.run(config, near_client)
    first = written(own)
    assert edges_of(config) == [60] * len(config.edge_paths)
    for uri in {config.entity_path, *config.edge_paths}:
        for path, checksum in storage.read_checksums(storage.manifest_of(uri).uri).items():
            assert checksums.of_file(f"{uri}/{path}") == checksum
    names = {str(Path(path).relative_to(Path.cwd() / "data")) for path in config.edge_paths}
    assert {str(Path(name).parent) for name in first if name.endswith(".h5")} == names
    other = settings_of(layout, 1, entities={"all": {"num_partitions": 2}})  # more files, then fewer again
    for each in (other, config):
        output_checks.check_outputs(each, [ETL, TRAIN], table_roots(each))
        job.run(each, near_client)
        assert any("edges_1_1.h5" in name for name in written(own)) == (each is other)
    assert written(own) == first
    assert not [name for name in first if name.rpartition("/")[2].startswith(".")]


@pytest.mark.parametrize(
    ("layout", "kill", "number"),  # after the kill the same settings, or others
    [
        ("fb15k", Kill(1, "dynamic_rel_count.txt"), 0),  # the first is the one to be moved
        ("fb15k", Kill(1, "part-00000.parquet"), 1),
        ("sql", Kill(2, "checksums.xxh128"), 1),
        ("sql", Kill(1, "edges_0_0.h5"), 0),
    ],
)
def test_killed_while_files_take_their_places(near_client, forked, own, tmp_path, layout, kill, number):
    expected = {}
    for each in (1, 0):
        job.run(settings_of(layout, each), near_client)
        expected[each] = written(own)
    forked(*saved(settings_of(layout, 1), tmp_path / "saved"), kill=kill)
    written(own)
    job.run(settings_of(layout, number), near_client)
    assert written(own) == expected[number]


@pytest.mark.parametrize(
    ("layout", "name"),
    [
        ("fb15k", "entity_names_all_0.json"),
        ("fb15k", "freebase-test_partitioned/edges_3_3.h5"),
        ("livejournal", "entity_count_all_0.txt"),
        ("sql", "edges_0_0.h5"),
        ("fb15k", "_SUCCESS"),
    ],
)
def test_files_of_an_import_by_pbg_are_not_replaced(near_client, folder, layout, name):
    config = settings_of(layout)
    file = Path(config.entity_path, name)
    file.parent.mkdir(exist_ok=True)
    file.write_text("theirs")
    before = files_under("data")
    for refused in (
        lambda: output_checks.check_outputs(config, [ETL], table_roots(config)),
        lambda: job.run(config, near_client),
    ):
        with pytest.raises(ConfigError, match=f"holds {file.name}, which etl has not written"):
            refused()
    assert files_under("data") == before
    output_checks.check_outputs(config, [TRAIN], table_roots(config))


def test_a_manifest_of_others_deletes_nothing(near_client: Client, own: dict[str, bytes]) -> None:
    config = settings_of("fb15k")
    job.run(config, near_client)
    paths = ["thesis/edges_0_0.h5", "entity_index/../fb15k.tgz", "entity_index.md"]
    paths += ["../other_partitioned/edges_0_0.h5"]
    manifest = Path(config.entity_path, "checksums.xxh128")
    manifest.write_text(manifest.read_text() + "".join(f"{'0' * 32}  {path}\n" for path in paths))
    job.run(config, near_client)
    assert len(written(own)) > 5


def test_a_folder_that_holds_our_files_alone_is_replaced_at_once(near_client: Client, folder: Path) -> None:
    config = settings_of("livejournal")
    job.run(config, near_client)
    before = Path("data/train_partitioned").stat().st_ino
    job.run(config, near_client)
    assert Path("data/train_partitioned").stat().st_ino != before


def test_files_put_among_ours_later_stay(near_client: Client, folder: Path) -> None:
    config = settings_of("sql")
    job.run(config, near_client)
    names = ("notes.txt", ".notes", "entity_index/notes.txt", "entity_index/all/.notes")
    paths = [Path(config.entity_path, name) for name in names]
    for path in paths:
        path.write_text("mine")
    job.run(config, near_client)
    assert [path.read_text() for path in paths] == ["mine"] * 4


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["fb15k", "livejournal"])
def test_ids_that_a_checkpoint_needs_stay(near_client: Client, own: dict[str, bytes], layout: str) -> None:
    """Beside their folder, whether it holds files of others or not; once, however often etl runs."""
    config = settings_of(layout)
    job.run(config, near_client)
    trained = {"inputs": fingerprints.describe_inputs([config.entity_path])}
    checkpoint = config.checkpoint_path + {"fb15k": "", "livejournal": ".stale-1"}[layout]
    storage.write_text(f"{checkpoint}/{trained_with.FILE}", json.dumps(trained))
    ids = entity_index.read_part(config.entity_path, "all", 0)
    for number in (0, 1, 2):
        job.run(settings_of(layout, number), near_client)
    (kept,) = storage.moved_aside(config.entity_path)
    assert entity_index.read_part(kept, "all", 0).equals(ids)
    assert not entity_index.read_part(config.entity_path, "all", 0).equals(ids)
    assert not Path(kept, "fb15k.tgz").exists()  # of the user, who finds it where it was
    trained_with.check_entities(checkpoint, kept)
    with pytest.raises(FormatError, match=f"set entity_path to {kept}"):
        trained_with.check_entities(checkpoint, config.entity_path)
    assert written(own)


def test_tables_among_the_outputs_and_two_splits_in_one_folder_are_refused(folder: Path) -> None:
    columns = {"lhs": 0, "relation_column": 1, "rhs": 2}
    of_splits = [{"path": "x.tsv", "split": split, **columns} for split in ("train", "edges")]
    of_a_folder = [{"path": f"{folder}/data/FB15k/*.txt", **columns}]
    for changes, tables, message in (
        ({"edge_paths": ["data/edges"]}, of_splits, "the splits train and edges would both be"),
        ({}, of_a_folder, "name its files one by one"),
    ):
        settings_of("fb15k", **changes)
        config = configuration.load("config.py", [f"etl.tables={json.dumps(tables)}"])
        with pytest.raises(ConfigError, match=message):
            output_checks.check_outputs(config, [ETL], table_roots(config))


@pytest.fixture
def run(near_client: Client, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command `etl` in this process."""
    return on_cluster(near_client, monkeypatch, command)


def test_files_on_the_command_line_go_to_the_edge_paths_in_their_order(folder: Path, run: Command) -> None:
    """The examples of early 2019 have `edge_paths=[]`: PBG's import makes a folder beside each file."""
    settings_of("fb15k")
    files = [f"data/FB15k/0-{split}.txt" for split in SPLITS]
    Path(files[1]).write_text("a\tr\tb\n")
    assert run("config.py", "-l", "0", "-r", "2", "--rel-col", "1", *files) == 0
    assert edges_of(configuration.load("config.py")) == [60, 1, 60]
    without = {**FB15K, "edge_paths": []}
    Path("config.py").write_text(f"def get_torchbiggraph_config():\n    return {without!r}\n")
    assert run("config.py", "-l", 0, "-r", 2, "--rel-col", 1, *files) == 0
    folders = ",".join(f"data/FB15k/0-{split}_partitioned" for split in SPLITS)
    found = configuration.load("config.py", [configuration.as_override(f"edge_paths={folders}")])
    assert edges_of(found) == [60, 1, 60]


def test_a_table_with_a_log_on_the_command_line(folder: Path, run: Command) -> None:
    settings_of("fb15k")
    write_deltalake("lake", pa.table({"l": ["a", "b"], "r": ["r", "r"], "t": ["x", "y"]}))
    files = [f"data/FB15k/0-{split}.txt" for split in SPLITS[1:]]
    assert run("config.py", "-l", "0", "-r", "2", "--rel-col", "1", "lake", *files) == 0
    assert edges_of(configuration.load("config.py")) == [2, 60, 60]


def test_wrong_words_are_refused(folder: Path, run: Command, capsys: pytest.CaptureFixture[str]) -> None:
    settings_of("fb15k")
    for words, message in (
        ("-l 0 -r 2 --rel-col 1 x.txt", "expected a file for each of edge_paths, which are 3"),
        ("-l 0 --rel-col 1 x.txt", "expected both --lhs-col and --rhs-col"),
        ("-l 0 -r 2 a b c", "--rel-col: dynamic relations"),
        ("a b c", "expected both --lhs-col and --rhs-col"),
    ):
        assert run("config.py", *words.split()) == 2
        assert message in capsys.readouterr().err
