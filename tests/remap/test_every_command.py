"""Commands on a finished run replace their own results alone, go on after a kill, refuse wrong options."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import distributed
import pytest

from graphmill import storage
from graphmill.cli import main
from tests.commands import Command, on_cluster
from tests.contents import contents
from tests.etl.graphs import write_parquet
from tests.finished import copy_of
from tests.forked import Forks, Kill
from tests.graphmill.ask.predict.world import write_world
from tests.hadoop.files import files_at, upload

# Each with options with which it writes something else; {root} is the fixture.
COMMANDS = {
    "predict": ("predict {root}/run --relation likes --k 4 --exclude-known --exact", "--k 2"),
    "pairs": ("predict {root}/run --pairs {root}/edges.parquet", "--side lhs"),
    "ids": ("predict {root}/run --cosine --type user --ids {root}/ids --k 3 --approximate", "--k 2"),
    "lists": ("predict {root}/run --relation likes --k 20 --approximate --task-memory 16MiB", "--k 2"),
    "export": ("export {root}/run --precision int8", "--precision float16"),
    "features": ("features {root}/run {root}/table --column c --type user", "--components 2"),
    "fold-in": ("fold-in {root}/run --edges {root}/edges.parquet", "--max-edges 1"),
    "remap": ("remap {root}/run --output-chunk-size 99", "--output-chunk-size 2"),
}
RECORDS = ("_features.json", "_fold_in.json", "_SUCCESS")  # with times, or with the places of the inputs
Result = Callable[..., Path]


def words(command: str, root: str | Path, out: str | Path, more: str = "") -> list[str]:
    """The arguments of `graphmill` that write the folder `out`."""
    to = "--output-dir" if command == "remap" else "--to"
    return [*COMMANDS[command][0].format(root=root).split(), to, str(out), *more.split()]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, files of a table to join with it, some ids, edges of new ones, and files that fit no question.

    No test changes it for good.
    """
    folder = tmp_path_factory.mktemp("asked") / "root"
    world = write_world(folder / "run", num_partitions=3)
    (folder / "ids").write_text("\n".join(world.name("user", number) for number in (9, 0, 15)))
    numbers = range(60)
    edges = {
        "lhs": [f"new-{number % 7}" if number % 3 else world.name("user", number % 16) for number in numbers],
        "relation": ["likes" if number % 2 else "follows" for number in numbers],
        "rhs": [world.name("item" if number % 2 else "user", number % 16) for number in numbers],
    }
    user = world.name("user", 1)
    tables: dict[str, dict[str, Any]] = {
        "edges": edges,
        "nulls": {"name": ["a", None]},
        "table": {"c": [user], "vector": [1]},
        "known": {"lhs": [user], "relation": ["likes"], "rhs": [world.name("item", 1)]},
        "no-lhs": {"lhs": ["a", None], "relation": ["likes"] * 2, "rhs": ["b", "c"]},
    }
    for number in range(3):
        ids = [world.name("user", (number + row) % 16) for row in range(40)]
        tables[f"table/part-{number}"] = {"row": range(40), "c": ids}
    for name, columns in tables.items():
        write_parquet(folder / f"{name}.parquet", **columns)
    for name, text in TEXTS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def result(root: Path, client: distributed.Client, monkeypatch: pytest.MonkeyPatch) -> Result:
    """The result of a command with these options, made once, by workers in processes of their own."""

    def made(command: str, more: str = "") -> Path:
        folder = root.parent / f"{command}{more.replace(' ', '')}"
        if not folder.exists():
            with monkeypatch.context() as patch:
                far = on_cluster(client, patch, main.command)
                assert far(*words(command, root, folder, more)) == 0
        return folder

    return made


@pytest.fixture
def out(tmp_path: Path, result: Result, command: str) -> Path:
    """Copy the files that the command has written with other options."""
    return copy_of(result(command, COMMANDS[command][1]), tmp_path / "out")


def results_of(folder: Path | str) -> dict[str, bytes]:
    """All files but those with times, or with the places of the inputs."""
    return {name: each for name, each in files_at(str(folder)).items() if Path(name).name not in RECORDS}


# Where commands die: right after the file of this number has got its name, with files that stay.
PART, DONE = ("part-*.parquet", 0, 0), ("part-*.json", 0, 1)
OF_A_LIST = [(f"{name}.h5", 0, 0) for name in ("centers", "block-*", "part-*", "places-*")]
OF_A_FOLD = [("edges-*.parquet", 0, 0), ("sorted-*.arrow", 0, 0), ("solved-*.json", 0, 1)]
DEATHS = {
    "predict": [PART, DONE],
    "pairs": [PART, DONE],
    "ids": [PART, DONE],
    "lists": [*OF_A_LIST, PART, DONE],
    "export": [("user-*.json", 2, 3)],
    "features": [PART, ("done/part-0000?.json", 1, 2)],
    "fold-in": [PART, *OF_A_FOLD],
    "remap": [PART, ("part-*.parquet", 4, 0)],
}
WRITTEN = [(command, *each) for command, deaths in DEATHS.items() for each in deaths]
# Before the old folder goes aside, and before the new one has its name.
COMMITS = [(command, at, 0, 0) for command in COMMANDS for at in (".out.old-*", "out")]


@pytest.mark.parametrize(("command", "pattern", "number", "num_kept"), [*WRITTEN, *COMMITS])
def test_a_killed_command_goes_on(
    tmp_path: Path, root: Path, result: Result, out: Path, graphmill_command: Command, forked: Forks,
    command: str, pattern: str, number: int, num_kept: int,
) -> None:  # fmt: skip
    """The earlier result stays, finished pieces are not written again, and the bytes are those of one run."""
    before, asked = results_of(out), words(command, root, out)
    forked("graphmill", *asked, kill=Kill(number, pattern, is_after="out" not in pattern))
    aside = [results_of(path) for path in tmp_path.glob(".out.old-*")]
    assert (results_of(out), aside) == (({}, [before]) if pattern == "out" else (before, []))
    inodes = {path.stat().st_ino for each in tmp_path.glob(".out.*") for path in each.rglob("*.*")}
    assert graphmill_command(*asked) == 0
    assert results_of(out) == results_of(result(command))
    assert len([path for path in out.rglob("part-*") if path.stat().st_ino in inodes]) >= num_kept
    assert list(tmp_path.glob(".out*")) == []  # which unfinished commands leave


INDEX, ROWS = "entities/entity_index/user/part-00000.parquet", "checkpoint/embeddings_user_2.v1.h5"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "damage"),
    [*((each, INDEX) for each in ("predict", "export", "fold-in")), *((each, ROWS) for each in COMMANDS)],
)
def test_an_error_leaves_the_earlier_result(tmp_path, root, out, graphmill_command, command, damage, capsys):
    before, path = results_of(tmp_path), root / "run" / damage
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    try:
        assert graphmill_command(*words(command, root, out)) == 2
    finally:
        path.write_bytes(whole)
    assert path.name in capsys.readouterr().err
    assert results_of(tmp_path) == before


@pytest.mark.parametrize("command", ["predict", "export", "features", "fold-in", "remap"])
def test_folders_of_others_are_not_replaced(tmp_path, root, graphmill_command, command, capsys):
    for name in ("mine/thesis.tex", "table/part-00000.parquet", "spark/part-00000.parquet", "file"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "spark/_SUCCESS").touch()
    before = contents(tmp_path), contents(root / "run/checkpoint")
    wrong = {
        tmp_path / "mine": "thesis.tex, and is replaced as a whole",
        tmp_path / "table": "holds files, and no _",
        tmp_path / "spark": "holds files, and no _",
        tmp_path / "file": "expected a folder, or none yet, found the file",
        root / "run": "and is replaced as a whole",
    }
    for out, message in wrong.items():
        assert graphmill_command(*words(command, root, out)) == 2
        assert message in capsys.readouterr().err
    assert (contents(tmp_path), contents(root / "run/checkpoint")) == before


HALF = "--precision float16"
ON_HDFS = (
    *((command, "") for command in ("lists", "features", "fold-in", "remap")),
    *(("export", more) for more in ("", "--format arrow", f"--format word2vec {HALF}")),
)


@pytest.mark.hdfs
@pytest.mark.slow
def test_on_hdfs_the_same_bytes(root, result, graphmill_command, hdfs_uri):
    upload(root, hdfs_uri)
    there, here = hdfs_uri.encode(), str(root).encode()
    for number, (command, more) in enumerate(ON_HDFS):
        # The first replaces what it wrote with other options, and an export in one format that in another.
        if number == 0:
            upload(result(command, COMMANDS[command][1]), f"{hdfs_uri}/out-{command}")
        assert graphmill_command(*words(command, hdfs_uri, f"{hdfs_uri}/out-{command}", more)) == 0
        found = results_of(f"{hdfs_uri}/out-{command}")
        found = {name: content.replace(there, here) for name, content in found.items()}
        assert found == results_of(result(command, more)), (command, more)
    assert [uri for uri in storage.list_hidden(hdfs_uri) if ".out" in uri] == []


WITH_WRONG = {
    "predict": "predict {root}/run WRONG --to {root}/out",
    "export": "export {root}/run WRONG --to {root}/out",
    "features": "features {root}/run {root}/table.parquet WRONG --to {root}/out",
    "fold-in": "fold-in {root}/run --edges WRONG --to {root}/out",
    "neighbors": "neighbors --embeddings {root} --id n7 WRONG",
}
TEXTS = {
    "unknown": "x\ny\n",
    "empty": "",
    "empty.csv": "",
    "plain.csv": "lhs,rhs\na,b\n",
    "eats.csv": "lhs,relation,rhs\na,eats,b\n",
    "names.csv": "lhs,relation,rhs\na,likes,b\n",
    "twice.csv": "id,id\na,b\n",
    "columns.csv": "a\nb\n",
    "mine/thesis.tex": "x",
}
# What is wrong, and the message.
WRONG = {
    "predict": {
        "": "--relation: missing; the run has likes, follows",
        "--relation bought": "--relation bought: expected one of likes, follows",
        "--relation likes --checkpoint-version 9": "remap.checkpoint_version, or --checkpoint-version: ",
        "--checkpoint-version 8 --relation likes": "has no complete version 8; complete versions: 1",
        "--relation likes --set relations.0.operator=affine": "error: relation likes: ",
        "--relation likes --task-memory 7": "'--task-memory': expected a size of 16MiB or more",
        "--relation likes --recall nan": "recall: input should be a finite number; found nan",
        "--relation likes --calibrated": "--calibrated: has no effect without --exclude-known",
        "--relation likes --ids /absent.txt": "error: --ids /absent.txt: expected a file, or a folder with",
        "--relation likes --ids {root}/unknown": "expected ids of 'user', found 2 others, such as 'x', 'y'",
        "--relation likes --ids {root}/empty": "expected ids of 'user', found none",
        "--relation likes --ids {root}/empty.csv": "expected a column of strings, found none",
        "--pairs {root}/empty.csv --relation likes": "expected the columns lhs and rhs, found none",
        "--relation likes --ids {root}/twice.csv": "expected one column 'id', found 2",
        "--relation likes --ids {root}/nulls.parquet": "row 1: column 'name': expected no nulls",
        "--pairs x.csv --recall 0.5 --approximate": "--pairs: cannot be used with --approximate, --recall",
        "--pairs {root}/plain.csv": "--relation: missing; ",
        "--pairs {root}/eats.csv": "column 'relation': expected one of likes, follows, found 'eats'",
        "--pairs {root}/names.csv --relation follows": "names.csv, whose column `relation` names them",
        "--pairs {root}/columns.csv --relation likes": "expected the columns lhs and rhs, found a",
        "--pairs {root}/unknown --relation likes": "expected pairs in FILE.parquet or FILE.csv",
        "--cosine": "--type: missing; the run has user, item",
        "--cosine --type shop": "--type shop: expected one of user, item",
        "--cosine --type user --candidates shop": "--candidates shop: expected one of",
        "--relation likes --type user": "--type: has no effect without --cosine",
        "--relation likes --index {root}/out/index": "out/index lies in the folder of --to",
        "--relation likes --index {root}/mine": "thesis.tex, which is no list of candidates",
        "--relation likes --exact --index {root}/mine": "--exact: cannot be used with --index",
    },
    "export": {
        "--types user,shop": "--types: 'shop' is not among the entities: user, item",
        "--format word2vec --precision pq": "holds float32 and float16, not --precision pq",
        "--pq-bytes 8": "--pq-bytes: has no effect without --precision pq",
    },
    "features": {
        "--column c --type shop": "--type: expected one of user, item, found 'shop'",
        "--column x --type user": "--column: expected one of c, vector, found 'x'",
        "--column c": "--type: missing; the run has user, item",
        "--column c --type user": "two columns named 'vector'",
        "--column c --type item --prefix g_": "found none of them in 1 rows",
        "--column c --type user --components 2 --similar-to ids": (
            "--components: cannot be used with --similar-to"
        ),
        "--column c --type user --no-header": "table.parquet, which is read as parquet",
    },
    "fold-in": {
        "{root}/known.parquet": "expected ids that the run does not know, found none in 1 rows",
        "{root}/columns.csv": "expected a column 'lhs' (lhs), found columns ['a']",
        "{root}/no-lhs.parquet": "row 2 (from 1, the header not counted), column 'lhs' (lhs): null",
        "{root}/names.csv --no-weight --weight w": "--no-weight: cannot be used with --weight",
        "{root}/names.csv --format json --delimiter ;": "names.csv, which is read as json",
        "{root}/known.parquet --delimiter ; --encoding latin-1": "--delimiter, --encoding: no effect on",
        "{root}/names.csv --ids user=/absent.txt": "error: --ids: /absent.txt: no file there",
        "{root}/names.csv --ids thing=x": "--ids thing=x: expected TYPE=FILE, types: user, item",
        "{root}/names.csv --relation likes --relation-column relation": (
            "expected one of relation (the same for every row) and relation_column"
        ),
    },
    "neighbors": {
        "--inverse": "--inverse: has no effect without --relation",
        "--relation r1 --type node": "--relation: cannot be used with --type",
    },
}


@pytest.fixture(scope="module")
def before(root: Path) -> dict[str, bytes]:
    """All files of the folder."""
    return contents(root)


@pytest.mark.parametrize(("command", "wrong"), [(name, each) for name in WRONG for each in WRONG[name]])
def test_wrong_questions(root, before, graphmill_command, command, wrong, capsys):
    words = WITH_WRONG[command].replace("WRONG", wrong).format(root=root).split()
    assert graphmill_command(*words) == 2
    assert WRONG[command][wrong] in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert contents(root) == before
