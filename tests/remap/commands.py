"""The commands on a finished run, with all that they read: for tests of what every one of them holds to."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.graphmill.ask.predict.world import World, write_world

# Each writes the folder {out}; {root} is what `write_asked` fills.
COMMANDS = {
    "predict": "predict {root}/run --relation likes --k 4 --exclude-known --exact --to {out}",
    "pairs": "predict {root}/run --pairs {root}/edges.parquet --to {out}",
    "ids": "predict {root}/run --cosine --type user --ids {root}/ids --k 3 --approximate --to {out}",
    "lists": "predict {root}/run --relation likes --k 20 --approximate --task-memory 16MiB --to {out}",
    "export": "export {root}/run --precision int8 --to {out}",
    "features": "features {root}/run {root}/table --column c --type user --to {out}",
    "fold-in": "fold-in {root}/run --edges {root}/edges.parquet --to {out}",
    "remap": "remap {root}/run --output-chunk-size 99 --output-dir {out}",
}
# Options with which a command writes something else.
OTHERWISE = {
    "predict": "--k 2",
    "pairs": "--side lhs",
    "ids": "--k 2",
    "lists": "--k 2",
    "export": "--precision float16",
    "features": "--components 2",
    "fold-in": "--max-edges 1",
    "remap": "--output-chunk-size 2",
}
RECORDS = ("_features.json", "_fold_in.json", "_SUCCESS")  # with times, or with the places of the inputs


def words(command: str, root: str | Path, out: str | Path, more: str = "") -> list[str]:
    """The arguments of `graphmill`."""
    return [*COMMANDS[command].format(root=root, out=out).split(), *more.split()]


def write_asked(root: Path) -> World:
    """A run, three files of a table to join with it, some ids, and edges of new ones."""
    world = write_world(root / "run", num_partitions=3)
    (root / "table").mkdir()
    for number in range(3):
        ids = [world.name("user", (number + row) % 16) for row in range(40)]
        pq.write_table(pa.table({"row": range(40), "c": ids}), root / f"table/part-{number}.parquet")
    (root / "ids").write_text("\n".join(world.name("user", number) for number in (9, 0, 15)))
    numbers = range(60)
    edges = {
        "lhs": [f"new-{number % 7}" if number % 3 else world.name("user", number % 16) for number in numbers],
        "relation": ["likes" if number % 2 else "follows" for number in numbers],
        "rhs": [world.name("item" if number % 2 else "user", number % 16) for number in numbers],
    }
    pq.write_table(pa.table(edges), root / "edges.parquet")
    return world
