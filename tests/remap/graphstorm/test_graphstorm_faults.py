"""Damage of every kind: exit code not 0, a message with file and row, and not one input or row lost."""

import json
import os
import pickle
import re
import shutil
import signal
import types
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphmill import storage
from graphmill.cli import remap
from graphmill.errors import LockedError, StorageError
from graphmill.run import lock
from remap import tables
from remap.graphstorm import commit, job
from remap.graphstorm.unique_ids import Ids, first_repeated
from tests.commands import on_cluster
from tests.contents import contents
from tests.forked import Forks, Kill
from tests.hadoop.files import upload
from tests.processes import full_disk
from tests.remap.saved import Cli, Refused, Rows, Tree, save
from tests.workers import workers


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("/tmp/graphmill-was-fooled",)


def write_tree(tree: Tree) -> None:
    tree.write_users([4, 4, 4], num_files=3)


def set_id(tree: Tree, row: int, nid: int) -> None:
    path = tree.emb / "user/embed_nids-00001.pt"
    nids = torch.load(path, weights_only=True)
    nids[row] = nid
    torch.save(nids, path)


def map_file(tree: Tree, number: int) -> Path:
    return tree.maps / f"user/part-{number:05d}.parquet"


def change_map(tree: Tree, row: int, **values: Callable[[list[Any]], Any]) -> None:
    """Replace values of a row of the second file, by those of the whole column."""
    columns = pq.read_table(map_file(tree, 1)).to_pydict()
    for name, value in values.items():
        columns[name][row] = value(columns[name])
    table = pa.table({"orig": columns["orig"], "new": pa.array(columns["new"], pa.int64())})
    pq.write_table(table, map_file(tree, 1))


def truncate(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def count_a_row_more(path: Path) -> None:
    """Let the footer of a parquet file of 4 rows say 5: Arrow then reads 4, without a word."""
    pq.write_table(pq.read_table(path), path)  # in one row group
    content = path.read_bytes()
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    path.write_bytes(content[:start] + content[start:].replace(b"\x16\x08", b"\x16\x0a"))


FAULTS: dict[str, tuple[Callable[[Tree], Any], str]] = {
    "not finite": (
        lambda t: save(t.emb / "user/embed-00001.pt", torch.diag(torch.tensor([1, 1, 1, torch.nan]))),
        r"embed-00001\.pt: row 3, of user 'user:\d+-ß', is not finite; .*--allow-non-finite",
    ),
    "id out of range": (lambda t: set_id(t, 2, 12), r"nids-00001\.pt: row 2: the id is 12; expected 0 to 11"),
    "negative id": (lambda t: set_id(t, 3, -1), r"nids-00001\.pt: row 3: the id is -1; expected 0 to 11"),
    "ids of a rank that repeat another's": (
        lambda t: shutil.copy(t.emb / "user/embed_nids-00000.pt", t.emb / "user/embed_nids-00002.pt"),
        r"embed_nids-00002\.pt: row 0: the id \d+ comes again, after row 0 of .*embed_nids-00000\.pt; ",
    ),
    "an id that comes again in its file": (
        lambda t: set_id(t, 3, int(torch.load(t.emb / "user/embed_nids-00001.pt")[1])),
        r"embed_nids-00001\.pt: row 3: the id \d+ comes again, after row 1 of .*embed_nids-00001\.pt",
    ),
    "an empty map": (
        lambda t: [pq.write_table(pq.read_table(each)[:0], each) for each in (t.maps / "user").iterdir()],
        r"row 0: the id is \d+; expected none, as the map of 'user' has 0 ids",
    ),
    "missing map": (
        lambda t: [each.unlink() for each in (t.maps / "user").iterdir()],
        r"raw_id_mappings/user: expected the map of 'user', \*\.parquet, found none",
    ),
    "embeddings that are tables already": (
        lambda t: [each.rename(each.with_suffix(".parquet")) for each in (t.emb / "user").iterdir()],
        r"emb/user: expected embed-\*\.pt files, found none: already remapped\?",
    ),
    "missing map part": (
        lambda t: map_file(t, 1).unlink(),
        r"part-0000[02]\.parquet: row \d: new is \d+; expected 0 to 7, .* 8 rows: is one of its files",
    ),
    "duplicate and missing entries": (
        lambda t: change_map(t, 2, new=lambda new: new[0]),
        r"part-00001\.parquet: row 2: new \d+ comes again in the map of 'user'; \d+ does not come at all",
    ),
    "a raw id that comes twice": (
        lambda t: change_map(t, 2, orig=lambda orig: orig[0]),
        r"part-00001\.parquet: row 2: raw id '.+' has the ids \d+ and \d+ in the map of 'user'; expected one",
    ),
    "a null in the map": (
        lambda t: change_map(t, 1, orig=lambda _: None),
        r"part-00001\.parquet: row 1: column 'orig': expected no nulls, found one",
    ),
    "a footer that counts a row more than there are": (
        lambda t: count_a_row_more(map_file(t, 1)),
        r"part-00001\.parquet: expected 5 rows as its footer says, found 4",
    ),
    "a map cut short": (lambda t: truncate(map_file(t, 1), 300), r"-00001\.parquet: expected a parquet file"),
    "two columns of one name": (
        lambda t: pq.write_table(pa.table([["a"], ["b"], [0]], ["orig", "orig", "new"]), map_file(t, 1)),
        r"part-00001\.parquet: expected one column 'orig', found 2",
    ),
    "a rank with rows of another type": (
        lambda t: save(t.emb / "user/embed-00001.pt", torch.ones(4, 4).half()),
        r"embed-00001\.pt: expected rows as .*embed-00000\.pt has, float32 of shape \(4, 4\), found float16",
    ),
    "truncated": (lambda t: truncate(t.emb / "user/embed-00002.pt", -200), r"-00002\.pt: .*found damage"),
    "a hostile pickle": (
        lambda t: (t.emb / "user/embed-00001.pt").write_bytes(pickle.dumps(Hostile())),
        r"embed-00001\.pt: expected a file of one tensor, .*: it asks for more than tensors",
    ),
    "no emb_info": (lambda t: (t.emb / "emb_info.json").unlink(), r"emb_info\.json: cannot open"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_nothing_is_lost(tree: Tree, refused: Refused, fault: str) -> None:
    write_tree(tree)
    do_damage, message = FAULTS[fault]
    do_damage(tree)
    before = contents(tree.root)
    refused(f"^error: .*{message}", *tree.arguments())
    assert contents(tree.root) == before
    assert not Path("/tmp/graphmill-was-fooled").exists()


def test_rows_of_some_ids_alone(tree: Tree, cli: Cli, caplog: pytest.LogCaptureFixture) -> None:
    expected = tree.write_users([4, 4], 12, 3)
    given = {name: content for name, content in contents(tree.root).items() if name.endswith(".pt")}
    assert cli(*tree.arguments("--preserve-input", "false")) == 0
    assert tree.embeddings() == expected
    assert "rows of 8 ids; the map of 'user' has 12, and the others get none" in caplog.text
    assert "the input is kept" in caplog.text
    assert given.items() <= contents(tree.root).items()


@pytest.mark.parametrize("share", [1, 3, 100])
@given(ranks=st.lists(st.lists(st.integers(0, 12), max_size=6), min_size=1, max_size=4))
def test_repeated_ids_are_found(share: int, ranks: list[list[int]]) -> None:
    batches = [Ids(str(rank), 0, np.array(ids, np.int64)) for rank, ids in enumerate(ranks)]
    found = [first_repeated(batches, start, min(start + share, 13)) for start in range(0, 13, share)]
    counts = Counter(nid for ids in ranks for nid in ids)
    assert any(found) == (max(counts.values(), default=0) > 1)
    for uri, row, nid in filter(None, found):
        assert ranks[int(uri)][row] == nid
        assert counts[nid] > 1


def test_predictions_that_do_not_fit(tree: Tree, refused: Refused) -> None:
    tree.write_map("user", 5)
    nodes, edges, rows = ("--pred-ntypes", "user"), ("--pred-etypes", "user,knows,user"), range(5)
    for flags, files, message in (
        (nodes, {"predict": [0, 0], "predict_nids": [4, 4]}, "row 1: the id 4 comes again"),
        (edges, {"predict": rows, "src_nids": rows, "dst_nids": range(4)}, "expected 5 integers"),
        (edges, {"predict": rows, "src_nids": rows, "dst_nids": [0, 1, 2, 3, 5]}, "row 4: the id is 5"),
    ):
        for stem, values in files.items():
            save(tree.pred / flags[1].replace(",", "_") / f"{stem}-00000.pt", torch.tensor(values))
        before = contents(tree.root)
        refused(rf"{stem}-00000\.pt: {message}", *tree.prediction_arguments(*flags))
        assert contents(tree.root) == before


OWN = "--node-id-mapping {maps} --node-emb-dir {emb} "


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (OWN + "--frobnicate 1", "No such option: --frobnicate|No such option '--frobnicate'"),
        (OWN + "--preserve-input yes", "expected true or false, found 'yes'"),
        (OWN + "--column-names id,x", "expected old names among nid, pred, src_nid, dst_nid, emb, found id"),
        (OWN + "--column-names nid", "expected OLD,NEW"),
        (OWN + "--column-names nid,x nid,y", "nid,y: expected OLD,NEW, and each OLD once"),
        (OWN + "--column-names nid,emb", "two columns are called the same"),
        (OWN + "--output-delimiter ;;", "output_delimiter"),
        (OWN + "--output-delimiter e", "output_delimiter"),  # which numbers hold
        (OWN + "--pred-etypes a,b", r"--pred-etypes: expected .source type"),
        (OWN + "--pred-ntypes user", "they need --prediction-dir"),
        (OWN + "--rank 2 --world-size 2", "expected a rank below --world-size"),
        (OWN + "--conf x.yaml", r"x\.yaml: cannot open"),
        (OWN + "--set remap.batch_rows=3", "cannot be used with GraphStorm's flags"),
        (OWN + "--set cluster.worker_memry=3", r"cluster\.worker_memry: unknown key"),
        (OWN + "--output-dir {maps}/x", "x: it lies among the maps of --node-id-mapping"),
        ("--node-id-mapping {maps}", "--node-emb-dir, --prediction-dir: expected at least one"),
        ("--node-emb-dir {emb}", "--node-id-mapping: missing"),
        ("--node-id-mapping {maps} --node-emb-dir {emb}/absent", "there is no such folder"),
    ],
)
def test_flags_that_are_wrong(tree: Tree, refused: Refused, flags: str, message: str) -> None:
    write_tree(tree)
    before = contents(tree.root)
    refused(message, *flags.format(maps=tree.maps, emb=tree.emb).split())
    assert contents(tree.root) == before


class KilledError(BaseException):
    """Stands for SIGKILL at a place where no clean-up of ours would run."""


def count_events(monkeypatch: pytest.MonkeyPatch, kill_at: int) -> list[str]:
    """Record the commit's operations on files, in order; die right before number `kill_at`."""
    events: list[str] = []
    own = types.SimpleNamespace(**vars(storage))  # operations of other modules do not count

    def watched(name: str) -> Callable[..., Any]:
        real = getattr(storage, name)

        def act(*args: Any) -> Any:
            if len(events) == kill_at:
                raise KilledError
            events.append(name)
            return real(*args)

        return act

    for name in ("move", "delete", "delete_marker", "write_marker"):
        setattr(own, name, watched(name))
    monkeypatch.setattr(commit, "storage", own)
    return events


def kill_in_commit(cli: Cli, arguments: list[Any]) -> list[str]:
    """Run the command until its commit has done three operations on files."""
    with pytest.MonkeyPatch.context() as patch:
        events = count_events(patch, 3)
        with pytest.raises(KilledError):
            cli(*arguments)
    return events


@pytest.mark.slow
def test_killed_at_every_step_of_the_commit(tree: Tree, cli: Cli) -> None:
    """The next command finishes: every row is there, and the inputs go only when all tables stand."""
    tree.write_map("user", 12, 3)
    kill_at, done = 0, False
    while not done:
        expected = tree.write_embeddings("user", [4, 0, 8])
        tree.write_emb_info(["user"], 3)
        num_inputs = len(tree.inputs())
        with pytest.MonkeyPatch.context() as patch:
            events = count_events(patch, kill_at)
            try:
                done = cli(*tree.arguments()) == 0
            except KilledError:
                if len(tree.inputs()) < num_inputs:  # deletions have begun
                    assert tree.embeddings() == expected
        assert cli(*tree.arguments()) == (2 if done else 0)  # done is done: there is nothing left to remap
        assert tree.embeddings() == expected
        assert tree.inputs() == {}
        assert not (tree.emb / commit.WORK).exists()
        kill_at += 1
    assert kill_at > 10
    assert events.count("move") == 2
    assert "delete" in events[events.index("move") :]


def test_a_job_on_two_folders_is_finished_from_either(tree: Tree, cli: Cli) -> None:
    expected = tree.write_users([12], num_files=3)
    tree.write_predictions("user", 12)
    both = tree.arguments("--prediction-dir", tree.pred, "--pred-ntypes", "user")
    assert kill_in_commit(cli, both).count("move") < 2
    # What is left of the predictions is finished, and with it the embeddings; then there are no more inputs.
    assert cli(*tree.prediction_arguments("--pred-ntypes", "user")) == 2
    assert tree.embeddings() == expected
    assert (tree.pred / "user/pred.predict-00000_00000.parquet").exists()
    assert tree.inputs() == {}
    assert not (tree.emb / commit.WORK).exists()


@pytest.mark.parametrize("more", [(), ("--preserve-input", "true")])
def test_inputs_of_another_job(tree: Tree, cli: Cli, more: tuple[str, ...]) -> None:
    """One job at a time; one that died in its commit must not take the files of the next run for its own."""
    write_tree(tree)
    before = tree.inputs()
    with lock.held(str(tree.emb)):
        assert cli(*tree.arguments()) == LockedError.exit_code
    assert tree.inputs() == before
    kill_in_commit(cli, tree.arguments(*more))
    expected = tree.write_embeddings("user", [4, 4, 4])
    assert cli(*tree.arguments(*more)) == 0
    assert tree.embeddings() == expected
    assert bool(tree.inputs()) == bool(more)
    assert not (tree.emb / lock.NAME).exists()


def test_a_job_that_has_lost_its_lock_leaves_the_work_of_the_next(tree, cli, monkeypatch):
    write_tree(tree)
    of_next = tree.emb / commit.WORK / "files/user.parquet"

    def lose(*_: object) -> None:
        (tree.emb / lock.NAME).write_text(lock.Locks().claim.text)
        of_next.parent.mkdir(parents=True, exist_ok=True)
        of_next.touch()
        raise StorageError("gone")

    monkeypatch.setattr(job, "check_ranks", lose)
    assert cli(*tree.arguments()) == StorageError.exit_code
    assert of_next.exists()


def test_a_table_that_lost_rows_later(tree: Tree, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tree(tree)
    before = tree.inputs()
    real = tables.count_rows

    def fewer_at_their_place(uri: str, options: tables.TableOptions) -> int:
        return real(uri, options) - (commit.WORK not in uri)

    monkeypatch.setattr(tables, "count_rows", fewer_at_their_place)
    message = r"embed-00000_00000\.parquet: expected 4 rows, found 3"
    refused(message, *tree.arguments(), code=StorageError.exit_code)
    assert tree.inputs() == before


def test_a_table_that_was_deleted_before_the_job_was_finished(tree: Tree, cli: Cli, refused: Refused) -> None:
    write_tree(tree)
    before = tree.inputs()
    kill_in_commit(cli, tree.arguments())
    (tree.emb / "user/embed-00000_00000.parquet").unlink()
    work = str(tree.emb / commit.WORK)
    message = rf"embed-00000_00000\.parquet: expected 4 rows, found none; .*; delete {work} to remap"
    refused(message, *tree.arguments(), code=StorageError.exit_code)
    assert tree.inputs() == before
    shutil.rmtree(work)
    assert cli(*tree.arguments()) == 0
    assert (len(tree.embeddings()), tree.inputs()) == (12, {})


def check_journal(tree: Tree, refused: Refused, text: str, message: str) -> None:
    """Assert that the command refuses the journal, and changes nothing."""
    journal = tree.emb / commit.WORK / commit.JOURNAL
    journal.parent.mkdir(exist_ok=True)
    journal.write_text(text)
    before = contents(tree.root)
    refused(message, *tree.arguments())
    assert contents(tree.root) == before


NOTHING: dict[str, Any] = {"moves": [], "replaced": [], "inputs": [], "figures": {}}


def test_a_damaged_journal(tree: Tree, refused: Refused) -> None:
    write_tree(tree)
    no_path = json.dumps({"format_version": 1, "options": {}, "roots": [5], **NOTHING})
    for text in ("{", "[]", '{"format_version": 2}', '{"format_version": 1}', no_path):
        message = r"journal\.json: (expected (the journal|a JSON object)|format_version is 2)"
        check_journal(tree, refused, text, message)


def test_a_journal_of_places_elsewhere(tree: Tree, refused: Refused) -> None:
    """A forged journal must not delete files outside the folders that the command names."""
    write_tree(tree)
    (tree.root / "elsewhere").mkdir()
    victim = tree.root / "elsewhere" / "precious"
    victim.write_text("mine")
    uri, seen = str(victim), victim.stat()
    options = {"node_id_mapping": "maps", "node_emb_dir": "emb"}
    journal = {"format_version": 1, "options": options, "roots": [str(tree.emb)], **NOTHING}
    for forged in (
        {"roots": [str(tree.emb), str(victim.parent)]},
        {"replaced": [uri]},
        {"inputs": [vars(commit.Input(uri, seen.st_size, seen.st_mtime_ns))]},
        {"moves": [vars(commit.Move(uri, f"{tree.emb}/user/x.parquet", 0))]},
    ):
        message = "journal names it; it is in no folder that this command names"
        check_journal(tree, refused, json.dumps(journal | forged), message)


really_write_table = job.write_table


def write_or_die(output: Any, *arguments: Any) -> int:
    """Write a table; before the third one a worker dies, once for each byte of the file `deaths`."""
    deaths = Path(output.root).parent / "deaths"
    if output.path.endswith("_00002") and (left := deaths.read_bytes()):
        deaths.write_bytes(left[1:])
        os.kill(os.getpid(), signal.SIGKILL)
    return really_write_table(output, *arguments)


@pytest.fixture
def expected(tree: Tree) -> Rows:
    """Embeddings to be remapped into many tables; what they should be."""
    return tree.write_users([50, 50])


def words(tree: Tree) -> list[Any]:
    return tree.arguments("--output-chunk-size", 10)


def check_next_run(tree: Tree, cli: Cli, expected: Rows) -> None:
    assert cli(*words(tree)) == 0
    assert tree.embeddings() == expected
    assert tree.inputs() == {}
    assert not (tree.emb / commit.WORK).exists()


@pytest.mark.parametrize("number", [0, 2, 9])
def test_killed_while_writing(tree: Tree, cli: Cli, expected: Rows, forked: Forks, number: int) -> None:
    before = tree.inputs()
    forked("graphmill", "remap", *words(tree), kill=Kill(number, "embed-*.parquet", is_after=True))
    assert tree.inputs() == before
    assert tree.embeddings() == {}
    check_next_run(tree, cli, expected)


@pytest.mark.slow
def test_a_killed_worker(tree: Tree, monkeypatch: pytest.MonkeyPatch, expected: Rows, capsys: Any) -> None:
    """One death is made good; after a hundred the input is as it was."""
    monkeypatch.setattr(job, "write_table", write_or_die)
    (tree.root / "deaths").write_bytes(bytes(1))
    with workers(2) as client:
        cli = on_cluster(client, monkeypatch, remap.command)
        check_next_run(tree, cli, expected)
        tree.write_embeddings("user", [50, 50])
        before, tables = tree.inputs(), tree.tables()
        (tree.root / "deaths").write_bytes(bytes(100))
        assert cli(*words(tree)) == 1
        # One that dies while it is started anew is lost to Dask for good.
        died = r"^error: remapping: (the task's worker died \d times|all workers died)"
        assert re.search(died, capsys.readouterr().err, re.MULTILINE)
        assert (tree.inputs(), tree.tables()) == (before, tables)


def test_disk_full(tree: Tree, cli: Cli, expected: Rows, refused: Refused) -> None:
    before = contents(tree.emb)
    with full_disk(900):  # less than one table takes
        refused("File too large", *words(tree), code=1)
    assert contents(tree.emb) == before
    check_next_run(tree, cli, expected)


@pytest.mark.slow
@pytest.mark.hdfs
def test_embeddings_and_predictions(tree: Tree, cli: Cli, hdfs_uri: str) -> None:
    expected = tree.write_users([100, 0, 200], num_files=3)
    folder = tree.pred / "user_knows_user"
    for stem, values in (("predict", [0.5, 1.5]), ("src_nids", [299, 0]), ("dst_nids", [7, 7])):
        save(folder / f"{stem}-00000.pt", values)
    upload(tree.root, hdfs_uri)
    arguments = [
        *("--node-id-mapping", f"{hdfs_uri}/raw_id_mappings"),
        *("--node-emb-dir", f"{hdfs_uri}/emb"),
        *("--prediction-dir", f"{hdfs_uri}/pred", "--pred-etypes", "user,knows,user"),
        *("--output-chunk-size", "64"),
    ]
    assert cli(*arguments) == 0
    left = [each.uri for each in storage.list_dir(hdfs_uri, recursive=True) if not each.is_dir]
    assert not [uri for uri in left if uri.endswith(".pt")]
    found = {}
    for uri in (uri for uri in left if "/emb/user/embed-" in uri):
        with storage.open_input(uri) as stream:
            table = pq.read_table(stream).to_pydict()
        found |= dict(zip(table["nid"], table["emb"], strict=True))
    assert found == expected
    with storage.open_input(f"{hdfs_uri}/pred/user_knows_user/pred.predict-00000_00000.parquet") as stream:
        assert pq.read_table(stream)["pred"].to_pylist() == [0.5, 1.5]
    assert storage.read_marker(f"{hdfs_uri}/emb") == storage.read_marker(f"{hdfs_uri}/pred") is not None
    assert cli(*arguments) == 2  # there is nothing left to remap
