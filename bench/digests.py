"""`python -m bench.digests OUT.json`: digests of what small runs write; a change may keep them all.

A tiny graph goes through the command `graphmill` in this process, with the settings of digests.yaml. All that
must stay is digested: datasets of HDF5 files, rows of parquet files, metrics of the evaluation, printed
answers. Digests hold for one machine. `--compare A.json B.json` prints the names that differ, and exits
with 1. Another checkout is digested by `PYTHONPATH=CHECKOUT python -P bench/digests.py OUT.json`.
"""

import hashlib
import json
import random
import runpy
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import click
import h5py
import pyarrow.parquet as pq
import yaml

NUM_EDGES, NUM_USERS, NUM_ITEMS = 3000, 200, 120
FITTED = ("temperature", "pooled", "relations")
METRICS = ("metrics", "baselines", "metrics_by_side", "metrics_by_relation", "metrics_by_degree")


def graphmill(*words: str) -> str:
    """Run the command in this process; return what it prints."""
    sys.argv = ["graphmill", *words]
    try:
        with redirect_stdout(StringIO()) as printed:
            runpy.run_module("graphmill", run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"{' '.join(words)}: exit code {end.code}") from end
    return printed.getvalue()


def write_tables() -> None:
    """Write edges of two days, edges of one type, new ids, and ids to ask for, into the current folder."""
    draw = random.Random(0).randrange
    rows = []
    for _ in range(NUM_EDGES):
        user, relation = draw(NUM_USERS), draw(3)
        tail = f"u{(user + draw(6)) % NUM_USERS}" if relation == 2 else f"i{(user + draw(9)) % NUM_ITEMS}"
        rows.append(f"u{user}\t{('bought', 'viewed', 'follows')[relation]}\t{tail}\t{1 + draw(3)}")
    new = [f"n{draw(20)}\tbought\ti{draw(NUM_ITEMS)}\t1" for _ in range(100)]
    late = len(rows) * 9 // 10
    follows = [
        row.replace("follows", f"f{number % 4}") for number, row in enumerate(rows) if "follows" in row
    ]
    tables = {"0": rows[:late], "1": rows[late:], "follows": follows, "new": new}
    for name, lines in tables.items():
        Path(f"{name}.tsv").write_text("\n".join(["lhs\trelation\trhs\tweight", *lines, ""]))
    Path("items.txt").write_text("".join(f"i{number}\n" for number in range(0, NUM_ITEMS, 5)))
    Path("users.txt").write_text("u1\nu2\nu3\n")
    pairs = [f"u{draw(NUM_USERS)},i{draw(NUM_ITEMS)}\n" for _ in range(50)]
    Path("pairs.csv").write_text("lhs,rhs\n" + "".join(pairs))


def configuration(base: dict[str, Any], name: str, own: dict[str, Any]) -> dict[str, Any]:
    """Make the configuration of a run: its own settings over those of the base."""
    made = base | own | {"output": name, "etl": base["etl"] | own.get("etl", {})}
    count, settings = made.pop("partitions", 1), made.pop("every", {})
    made["entities"] = {entity_type: {"num_partitions": count} for entity_type in made["entities"]}
    made["relations"] = [relation | settings for relation in made["relations"]]
    return made


def content(path: Path) -> bytes:
    """Read what must stay of a result file: no times, no paths, nothing of its layout."""
    match path.suffix, path.name:
        case ".h5", _:
            with h5py.File(path) as file:
                return b"".join(_datasets(file))
        case ".parquet", _:
            table = pq.read_table(path)
            return repr([(str(table.schema.types), table.to_pydict())]).encode()
        case _, "run.json":
            stage = json.loads(path.read_text())["stages"]["evaluate"]
            return json.dumps([stage.get(key) for key in METRICS]).encode()
        case _, "calibration.json":
            fitted = json.loads(path.read_text())
            return json.dumps([fitted[key] for key in FITTED]).encode()
        case ((".json" | ".html" | ".xxh128"), _):
            return b""
    return path.read_bytes() if path.name != "_SUCCESS" else b""


def _datasets(group: h5py.Group) -> Iterator[bytes]:
    for name in sorted(group):
        if isinstance(item := group[name], h5py.Group):
            yield from _datasets(item)
        else:
            yield f"{item.name} {item.dtype} {item.shape} ".encode() + item[()].tobytes()


def digests() -> Iterator[tuple[str, str]]:
    """Run everything in the current folder; yield names and digests of results and of printed answers."""
    cases = yaml.safe_load((Path(__file__).parent / "digests.yaml").read_text())
    write_tables()
    for name, own in cases["runs"].items():
        Path(f"{name}.yaml").write_text(yaml.safe_dump(configuration(cases["base"], name, own)))
        graphmill("pipeline", "--conf", f"{name}.yaml", "--quiet")
    for name, line in cases["calls"].items():
        graphmill(*line.split(), "--to", name, "--quiet")
    for name in (*cases["runs"], *cases["calls"]):
        for path in sorted(path for path in Path(name).rglob("*") if path.is_file()):
            if kept := content(path):
                yield str(path), hashlib.sha256(kept).hexdigest()[:32]
    for name, line in cases["printed"].items():
        yield name, hashlib.sha256(graphmill(*line.split()).encode()).hexdigest()[:32]


@click.command("python -m bench.digests")
@click.argument("paths", nargs=-1, type=click.Path(dir_okay=False, path_type=Path), required=True)
@click.option("--compare", is_flag=True, help="Compare two files, and run nothing.")
def command(paths: tuple[Path, ...], compare: bool) -> None:
    """Digest what small runs write, into a JSON file."""
    if not compare:
        out = paths[0].resolve()
        with tempfile.TemporaryDirectory() as folder, chdir(folder):
            out.write_text(json.dumps(dict(digests()), indent=1) + "\n")
        return
    one, other = (json.loads(path.read_text()) for path in paths)
    differing = sorted(name for name in {*one, *other} if one.get(name) != other.get(name))
    for name in differing:
        click.echo(f"{name}  {one.get(name)}  {other.get(name)}")
    click.echo(f"{len(differing)} of {len({*one, *other})} differ")
    raise SystemExit(bool(differing))


if __name__ == "__main__":
    command()
