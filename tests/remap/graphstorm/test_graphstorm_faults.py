"""Damage of every kind: exit code not 0, a message with file and row, and not one input or row lost."""

import json
import os
import pickle
import re
import shutil
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
from graphmill.errors import LockedError, StorageError
from graphmill.run import lock
from remap.graphstorm import commit
from remap.graphstorm.unique_ids import Ids, first_repeated
from remap.output import tables
from tests.remap.saved import Cli, Tree, save, snapshot


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


def change_map(tree: Tree, change: Callable[[list[Any], list[Any]], None]) -> None:
    table = pq.read_table(map_file(tree, 1)).to_pydict()
    change(table["orig"], table["new"])
    pq.write_table(
        pa.table({"orig": table["orig"], "new": pa.array(table["new"], pa.int64())}), map_file(tree, 1)
    )


def repeat_first(orig: list[Any], new: list[Any]) -> None:
    new[2] = new[0]


def repeat_raw_id(orig: list[Any], new: list[Any]) -> None:
    orig[2] = orig[0]


def add_row(orig: list[Any], new: list[Any]) -> None:
    orig.append("again")
    new.append(new[1])


def remove_row(orig: list[Any], new: list[Any]) -> None:
    orig.pop()
    new.pop()


def make_null(orig: list[Any], new: list[Any]) -> None:
    orig[1] = None


def repeat_rank(tree: Tree) -> None:
    shutil.copy(tree.emb / "user/embed_nids-00000.pt", tree.emb / "user/embed_nids-00002.pt")


def truncate(tree: Tree) -> None:
    path = tree.emb / "user/embed-00002.pt"
    path.write_bytes(path.read_bytes()[:-200])


def spoil(tree: Tree) -> None:
    path = tree.emb / "user/embed-00001.pt"
    rows = torch.load(path, weights_only=True)
    rows[3, 1] = torch.nan
    torch.save(rows, path)


FAULTS: dict[str, tuple[Callable[[Tree], Any], str]] = {
    "not finite": (
        spoil,
        r"embed-00001\.pt: row 3, of user 'user:\d+-ß', is not finite; .*--allow-non-finite",
    ),
    "id out of range": (
        lambda t: set_id(t, 2, 12),
        r"embed_nids-00001\.pt: row 2: the id is 12; expected 0 to 11",
    ),
    "negative id": (
        lambda t: set_id(t, 3, -1),
        r"embed_nids-00001\.pt: row 3: the id is -1; expected 0 to 11",
    ),
    "ids of a rank that repeat another's": (
        repeat_rank,
        r"embed_nids-00002\.pt: row 0: the id \d+ comes again, after row 0 of .*embed_nids-00000\.pt; "
        r"expected each id once",
    ),
    "an id that comes again in its file": (
        lambda t: set_id(t, 3, int(torch.load(t.emb / "user/embed_nids-00001.pt")[1])),
        r"embed_nids-00001\.pt: row 3: the id \d+ comes again, after row 1 of .*embed_nids-00001\.pt",
    ),
    "missing map": (
        lambda t: [each.unlink() for each in (t.maps / "user").iterdir()],
        r"raw_id_mappings/user: expected the map of 'user', \*\.parquet, found none",
    ),
    "missing map part": (
        lambda t: map_file(t, 1).unlink(),
        r"part-0000[02]\.parquet: row \d: new is \d+; expected 0 to 7, .* 8 rows: is one of its files",
    ),
    "duplicate and missing entries": (
        lambda t: change_map(t, repeat_first),
        r"part-00001\.parquet: row 2: new \d+ comes again in the map of 'user'; \d+ does not come at all",
    ),
    "a raw id that comes twice": (
        lambda t: change_map(t, repeat_raw_id),
        r"part-00001\.parquet: row 2: raw id '.+' has the ids \d+ and \d+ in the map of 'user'; expected one",
    ),
    "an entry too many": (
        lambda t: change_map(t, add_row),
        r"part-00001\.parquet: row 4: new \d+ comes again",
    ),
    "an entry too few": (
        lambda t: change_map(t, remove_row),
        r"part-0000\d\.parquet: row \d: new is 11; expected 0 to 10|embed_nids.*the id is|comes again",
    ),
    "a null in the map": (
        lambda t: change_map(t, make_null),
        r"part-00001\.parquet: row 1: column 'orig': expected no nulls, found one",
    ),
    "a map cut short": (
        lambda t: map_file(t, 1).write_bytes(map_file(t, 1).read_bytes()[:300]),
        r"part-00001\.parquet: expected a parquet file, found damage",
    ),
    "truncated": (truncate, r"embed-00002\.pt: expected a file of one tensor, found damage"),
    "not a tensor": (
        lambda t: torch.save({"emb": torch.ones(4, 4)}, t.emb / "user/embed-00001.pt"),
        r"embed-00001\.pt: expected one dense tensor, found dict",
    ),
    "a hostile pickle": (
        lambda t: (t.emb / "user/embed-00001.pt").write_bytes(pickle.dumps(Hostile())),
        r"embed-00001\.pt: expected a file of one tensor, .*: it asks for more than tensors",
    ),
    "another format": (
        lambda t: (t.emb / "emb_info.json").write_text('{"format": "wholegraph", "emb_name": ["user"]}'),
        r"emb_info\.json: expected the format 'pytorch' or 'hdf5', found 'wholegraph'",
    ),
    "no emb_info": (lambda t: (t.emb / "emb_info.json").unlink(), r"emb_info\.json: cannot open"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_nothing_is_lost(tree: Tree, cli: Cli, capsys: pytest.CaptureFixture[str], fault: str) -> None:
    write_tree(tree)
    do_damage, message = FAULTS[fault]
    do_damage(tree)
    before = snapshot(tree.root)
    assert cli(*tree.arguments()) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert re.search(message, told), told
    assert snapshot(tree.root) == before
    assert not Path("/tmp/graphmill-was-fooled").exists()


def test_predictions_of_a_node_twice(tree: Tree, cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    tree.write_map("user", 4)
    for rank, nids in enumerate(([0, 1], [2, 1])):
        save(tree.pred / f"user/predict-{rank:05d}.pt", torch.ones(2))
        save(tree.pred / f"user/predict_nids-{rank:05d}.pt", torch.tensor(nids))
    before = snapshot(tree.root)
    assert cli(*tree.prediction_arguments("--pred-ntypes", "user")) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert re.search(
        r"predict_nids-00001\.pt: row 1: the id 1 comes again, after row 1 of .*-00000\.pt", told
    )
    assert snapshot(tree.root) == before


def test_rows_of_some_ids_alone(tree: Tree, cli: Cli, caplog: pytest.LogCaptureFixture) -> None:
    expected = tree.write_users([4, 4], 12, 3)
    given = {name: content for name, content in snapshot(tree.root).items() if name.endswith(".pt")}
    assert cli(*tree.arguments("--preserve-input", "false")) == 0
    assert tree.embeddings() == expected
    assert "rows of 8 ids; the map of 'user' has 12, and the others get none" in caplog.text
    assert "the input is kept" in caplog.text
    assert given.items() <= snapshot(tree.root).items()


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


def test_edges_whose_files_differ_in_length(tree: Tree, cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    tree.write_map("user", 5)
    folder = tree.pred / "user_knows_user"
    for stem, num_rows in (("predict", 5), ("src_nids", 5), ("dst_nids", 4)):
        save(folder / f"{stem}-00000.pt", torch.arange(num_rows))
    before = snapshot(tree.root)
    assert cli(*tree.prediction_arguments("--pred-etypes", "user,knows,user")) == 2
    assert re.search(r"dst_nids-00000\.pt: expected 5 integers", capsys.readouterr().err)
    save(folder / "dst_nids-00000.pt", torch.tensor([0, 1, 2, 3, 5]))
    before = snapshot(tree.root)
    assert cli(*tree.prediction_arguments("--pred-etypes", "user,knows,user")) == 2
    assert re.search(r"dst_nids-00000\.pt: row 4: the id is 5", capsys.readouterr().err)
    assert snapshot(tree.root) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--frobnicate", "1"], "No such option: --frobnicate|No such option '--frobnicate'"),
        (["--preserve-input", "yes"], "expected true or false, found 'yes'"),
        (["--column-names", "id,x"], "expected old names among nid, pred, src_nid, dst_nid, emb, found id"),
        (["--column-names", "nid"], "expected OLD,NEW"),
        (["--column-names", "nid,emb"], "two columns are called the same"),
        (["--column-names"], "expected one value or several"),
        (["--output-format", "json"], "json"),
        (["--output-delimiter", ";;"], "output_delimiter"),
        (["--output-delimiter", "."], "output_delimiter"),  # which numbers hold
        (["--output-delimiter", "e"], "output_delimiter"),
        (["--pred-etypes", "a,b"], r"--pred-etypes: expected .source type"),
        (["--pred-ntypes", "user"], "they need --prediction-dir"),
        (["--rank", "2", "--world-size", "2"], "expected a rank below --world-size"),
        (["--conf", "x.yaml"], r"x\.yaml: cannot open"),
        (["--set", "remap.batch_rows=3"], "cannot be used with GraphStorm's flags"),
        (["--set", "cluster.worker_memry=3"], r"cluster\.worker_memry: unknown key"),
        (["--logging-level", "loud"], "loud"),
    ],
)
def test_flags_that_are_wrong(
    tree: Tree, cli: Cli, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    write_tree(tree)
    before = snapshot(tree.root)
    assert cli(*tree.arguments(*arguments)) == 2
    assert re.search(message, capsys.readouterr().err)
    assert snapshot(tree.root) == before


def test_no_folder_at_all(tree: Tree, cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli("--node-id-mapping", tree.maps) == 2
    assert "--node-emb-dir, --prediction-dir: expected at least one" in capsys.readouterr().err
    assert cli("--node-emb-dir", tree.emb) == 2
    assert "node_id_mapping: missing" in capsys.readouterr().err
    assert cli(*tree.arguments()) == 2
    assert "there is no such folder" in capsys.readouterr().err


class KilledError(BaseException):
    """Stands for SIGKILL at a place where no clean-up of ours would run."""


def count_events(monkeypatch: pytest.MonkeyPatch, kill_at: int) -> list[str]:
    """Record the commit's operations on files, in order; die right before number `kill_at`."""
    events: list[str] = []
    own = types.SimpleNamespace(**vars(storage))  # operations of other modules do not count

    def watched(name: str) -> None:
        real = getattr(storage, name)

        def act(*args: Any) -> Any:
            if len(events) == kill_at:
                raise KilledError
            events.append(name)
            return real(*args)

        setattr(own, name, act)

    for name in ("move", "delete", "delete_marker", "write_marker"):
        watched(name)
    monkeypatch.setattr(commit, "storage", own)
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
    save(tree.pred / "user/predict-00000.pt", torch.arange(12))
    save(tree.pred / "user/predict_nids-00000.pt", torch.arange(12))
    both = tree.arguments("--prediction-dir", tree.pred, "--pred-ntypes", "user")
    with pytest.MonkeyPatch.context() as patch:
        events = count_events(patch, 3)
        with pytest.raises(KilledError):
            cli(*both)
    assert events.count("move") < 2
    # What is left of the predictions is finished, and with it the embeddings; then there are no more inputs.
    assert cli(*tree.prediction_arguments("--pred-ntypes", "user")) == 2
    assert tree.embeddings() == expected
    assert (tree.pred / "user/pred.predict-00000_00000.parquet").exists()
    assert tree.inputs() == {}
    assert not (tree.emb / commit.WORK).exists()


def test_one_job_at_a_time(tree: Tree, cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    write_tree(tree)
    before = tree.inputs()
    with lock.held(str(tree.emb)):
        assert cli(*tree.arguments()) == LockedError.exit_code
    assert tree.inputs() == before
    assert cli(*tree.arguments()) == 0
    assert not (tree.emb / lock.NAME).exists()


def test_inputs_written_anew_are_not_deleted(tree: Tree, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that died in its commit must not take the files of the next run for its own."""
    write_tree(tree)
    with pytest.MonkeyPatch.context() as patch:
        count_events(patch, 3)
        with pytest.raises(KilledError):
            cli(*tree.arguments())
    expected = tree.write_embeddings("user", [4, 4, 4])
    assert cli(*tree.arguments()) == 0
    assert tree.embeddings() == expected
    assert tree.inputs() == {}


def test_a_table_that_lost_rows_after_it_was_written(
    tree: Tree, cli: Cli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tree(tree)
    before = tree.inputs()
    real = tables.count_rows

    def fewer_at_their_place(uri: str, options: tables.TableOptions) -> int:
        return real(uri, options) - (commit.WORK not in uri)

    monkeypatch.setattr(tables, "count_rows", fewer_at_their_place)
    assert cli(*tree.arguments()) == StorageError.exit_code
    assert re.search(r"embed-00000_00000\.parquet: expected 4 rows, found 3", capsys.readouterr().err)
    assert tree.inputs() == before
    monkeypatch.undo()


def test_a_table_that_was_deleted_before_the_job_was_finished(
    tree: Tree, cli: Cli, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tree(tree)
    before = tree.inputs()
    with pytest.MonkeyPatch.context() as patch:
        count_events(patch, 3)
        with pytest.raises(KilledError):
            cli(*tree.arguments())
    (tree.emb / "user/embed-00000_00000.parquet").unlink()
    assert cli(*tree.arguments()) == StorageError.exit_code
    work = str(tree.emb / commit.WORK)
    message = rf"embed-00000_00000\.parquet: expected 4 rows, found none; .*; delete {work} to remap"
    assert re.search(message, " ".join(capsys.readouterr().err.split()))
    assert tree.inputs() == before
    shutil.rmtree(work)
    assert cli(*tree.arguments()) == 0
    assert (len(tree.embeddings()), tree.inputs()) == (12, {})


EMPTY = '"options": {}, "moves": [], "replaced": [], "inputs": [], "figures": {}'
NO_PATH = f'{{"format_version": 1, "roots": [5], {EMPTY}}}'


@pytest.mark.parametrize("content", ["{", "[]", '{"format_version": 2}', '{"format_version": 1}', NO_PATH])
def test_a_damaged_journal(tree: Tree, cli: Cli, capsys: pytest.CaptureFixture[str], content: str) -> None:
    write_tree(tree)
    journal = tree.emb / commit.WORK / commit.JOURNAL
    journal.parent.mkdir()
    journal.write_text(content)
    before = snapshot(tree.root)
    assert cli(*tree.arguments()) == 2
    assert re.search(
        r"journal\.json: (expected (the journal|a JSON object)|format_version is 2)", capsys.readouterr().err
    )
    assert snapshot(tree.root) == before


@pytest.mark.parametrize("kind", ["roots", "replaced", "inputs", "moves"])
def test_a_journal_of_places_elsewhere(
    tree: Tree, cli: Cli, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    """A forged journal must not delete files outside the folders that the command names."""
    write_tree(tree)
    (tree.root / "elsewhere").mkdir()
    victim = tree.root / "elsewhere" / "precious"
    victim.write_text("mine")
    uri, seen = str(victim), victim.stat()
    places: dict[str, Any] = {
        "roots": [str(tree.emb)],
        "replaced": [uri],
        "inputs": [vars(commit.Input(uri, seen.st_size, seen.st_mtime_ns))],
        "moves": [vars(commit.Move(uri, f"{tree.emb}/user/x.parquet", 0))],
    }
    if kind == "roots":
        places["roots"] = [str(tree.emb), str(victim.parent)]
    content = {
        "format_version": 1,
        "options": {"node_id_mapping": "maps", "node_emb_dir": "emb"},
        "figures": {},
        "roots": places["roots"],
    }
    content |= {each: places[each] if each == kind else [] for each in ("replaced", "inputs", "moves")}
    journal = tree.emb / commit.WORK / commit.JOURNAL
    journal.parent.mkdir()
    journal.write_text(json.dumps(content))
    before = snapshot(tree.root)
    assert cli(*tree.arguments()) == 2
    assert "journal names it; it is in no folder that this command names" in capsys.readouterr().err
    assert snapshot(tree.root) == before
