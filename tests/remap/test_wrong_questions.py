"""Wrong options and files of the commands on a finished run: one message, exit code 2, nothing changed."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.commands import Command
from tests.graphmill.ask.predict.world import write_world
from tests.remap.graph import snapshot

COMMANDS = {
    "predict": "predict {root}/run WRONG --to {root}/out",
    "export": "export {root}/run WRONG --to {root}/out",
    "features": "features {root}/run {root}/table.parquet WRONG --to {root}/out",
    "fold-in": "fold-in {root}/run --edges WRONG --to {root}/out",
    "neighbors": "neighbors --embeddings {root} --id n7 WRONG",
}
TEXTS = {
    "unknown": "x\ny\n",
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
        "--relation likes --side xhs": "'xhs' is not one of",
        "--relation likes --checkpoint-version 9": "has no complete version 9; complete versions: 1",
        "--relation likes --task-memory 7": "'--task-memory': expected a size of 16MiB or more",
        "--relation likes --calibrated": "--calibrated: has no effect without --exclude-known",
        "--relation likes --calibrated --exclude-known": "there is no calibration",
        "--relation follows --calibrated --exclude-known --with-itself": (
            "--calibrated: cannot be used with --with-itself"
        ),
        "--relation likes --ids absent.txt": "absent.txt: there is no such file",
        "--relation likes --ids {root}/unknown": "expected ids of 'user', found 2 others, such as 'x', 'y'",
        "--relation likes --ids {root}/twice.csv": "expected one column 'id', found 2",
        "--relation likes --ids {root}/nulls.parquet": "row 1: column 'name': expected no nulls",
        "--relation likes --ids {root}/floats.parquet": (
            "column 'id': expected strings or integers, found double"
        ),
        "--pairs x.csv --ids y": "--pairs: cannot be used with --ids",
        "--pairs x.csv --exact": "--pairs: cannot be used with --exact",
        "--pairs x.csv --recall 0.5 --k 3": "--pairs: cannot be used with --k, --recall",
        "--pairs {root}/plain.csv": "--relation: missing; ",
        "--pairs {root}/eats.csv": "column 'relation': expected one of likes, follows, found 'eats'",
        "--pairs {root}/names.csv --relation follows": "names.csv, whose column `relation` names them",
        "--pairs {root}/columns.csv --relation likes": "expected the columns lhs and rhs, found a",
        "--pairs {root}/unknown --relation likes": "expected pairs in FILE.parquet or FILE.csv",
        "--cosine": "--type: missing; the run has user, item",
        "--cosine --type shop": "--type shop: expected one of user, item",
        "--cosine --type user --candidates shop": "--candidates shop: expected one of",
        "--cosine --relation likes": "--cosine: cannot be used with --relation",
        "--cosine --type user --side lhs": "--cosine: cannot be used with --side",
        "--relation likes --type user": "--type: has no effect without --cosine",
        "--relation likes --index {root}/out/index": "out/index lies in the folder of --to",
        "--relation likes --index {root}/mine": "thesis.tex, which is no list of candidates",
        "--relation likes --exact --index {root}/mine": "--exact: cannot be used with --index",
        "--relation likes --exact --recall 0.5": "--exact: cannot be used with --recall",
        "--relation likes --recall 1.5": "'--recall': 1.5 is not in the range",
    },
    "export": {
        "--types user,shop": "--types: 'shop' is not among the entities: user, item",
        "--format word2vec --precision pq": "holds float32 and float16, not --precision pq",
        "--pq-bytes 8": "--pq-bytes: has no effect without --precision pq",
        "--limit 8": "--limit: has no effect without --format tensorboard-projector",
        "--escape-ids --format npy": "--escape-ids: has no effect without --format word2vec",
        "--checkpoint-version 7": "no complete version 7",
        "--precision int4": "int4",
    },
    "features": {
        "--column c --type shop": "--type: expected one of user, item, found 'shop'",
        "--column x --type user": "--column: expected one of c, vector, n, found 'x'",
        "--column c": "--type: missing; the run has user, item",
        "--column c --type user --components 7": (
            "--components: expected 6 at most, the length of the vectors of 'user', found 7"
        ),
        "--column c --type user": "two columns named 'vector'",
        "--column c --type item --prefix g_": "found none of them in 1 rows",
        "--column n --type user --prefix g_": "expected strings or integers, found double",
        "--column c --type user --components 2 --similar-to ids": (
            "--components: cannot be used with --similar-to"
        ),
        "--column c --type user --no-header": "table.parquet, which is read as parquet",
    },
    "fold-in": {
        "{root}/eats.csv": "relation 'eats': the run was trained without it, and has likes, follows",
        "{root}/known.parquet": "expected ids that the run does not know, found none in 1 rows",
        "absent.parquet": "absent.parquet: no file there to read rows from",
        "{root}/columns.csv": "expected a column 'lhs' (lhs), found columns ['a']",
        "{root}/no-lhs.parquet": "row 2 (from 1, the header not counted), column 'lhs' (lhs): null",
        "{root}/names.csv --no-weight --weight w": "--no-weight: cannot be used with --weight",
        "{root}/names.csv --format json --delimiter ;": "names.csv, which is read as json",
        "{root}/known.parquet --delimiter ; --encoding latin-1": "--delimiter, --encoding: no effect on",
        "{root}/names.csv --ids thing=x": "--ids thing=x: expected TYPE=FILE, types: user, item",
        "{root}/names.csv --checkpoint-version 9": "has no complete version 9; complete versions: 1",
        "{root}/names.csv --relation likes --relation-column relation": (
            "expected one of relation (the same for every row) and relation_column"
        ),
    },
    "neighbors": {
        "--inverse": "--inverse: has no effect without --relation",
        "--with-itself": "--with-itself: has no effect without --relation",
        "--relation r1 --type node": "--relation: cannot be used with --type",
    },
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wrong")
    world = write_world(folder / "run", num_partitions=3)
    for name, text in TEXTS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    user = world.name("user", 1)
    for name, columns in {
        "nulls": {"name": ["a", None]},
        "floats": {"id": [1.0, 2.0]},
        "table": {"c": [user], "vector": [1], "n": [1.5]},
        "known": {"lhs": [user], "relation": ["likes"], "rhs": [world.name("item", 1)]},
        "no-lhs": {"lhs": ["a", None], "relation": ["likes"] * 2, "rhs": ["b", "c"]},
    }.items():
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    return folder


@pytest.fixture(scope="module")
def before(root: Path) -> dict[str, bytes]:
    """All files of the folder."""
    return snapshot(root)


@pytest.mark.parametrize(("command", "wrong"), [(name, each) for name in WRONG for each in WRONG[name]])
def test_wrong_questions(
    root: Path,
    before: dict[str, bytes],
    graphmill_command: Command,
    command: str,
    wrong: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = COMMANDS[command].replace("WRONG", wrong).format(root=root).split()
    assert graphmill_command(*words) == 2
    assert WRONG[command][wrong] in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert snapshot(root) == before
