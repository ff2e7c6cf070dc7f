"""Small graphs for the tests: written as raw tables, read back from the stage's output as raw edges."""

import json
import pickle
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.orc as paorc
import pyarrow.parquet as pq

from etl import job
from etl.strings.native import hash_strings
from graphmill import cluster
from graphmill.config import Config, from_mapping
from graphmill.config.sections.cluster import ClusterConfig
from graphmill.formats import edge_buckets, entity_counts, entity_index
from graphmill.formats.edge_buckets.files import EDGES, bucket_uri
from graphmill.vocab import Bucket, Side
from tests.contents import contents

Index = dict[tuple[str, int], list[str]]


class RawEdge(NamedTuple):
    """An edge as its table has it, with the types that its relation says."""

    lhs_type: str
    lhs: str
    relation: str
    rhs_type: str
    rhs: str
    weight: float | None = None


def config_of(
    output: Path | str,
    tables: str | Sequence[Mapping[str, Any]],
    *,
    entities: Mapping[str, int] | None = None,
    relations: Sequence[tuple[str, str, str]] = (),
    dynamic: bool = False,
    operator: str = "none",
    top: Mapping[str, Any] | None = None,
    listed: Sequence[Mapping[str, Any]] = (),
    featurized: str | None = None,
    **etl: Any,
) -> Config:
    """A configuration with `entities` (type -> partitions) and `relations` (name, lhs type, rhs type).

    `tables` may be the path of one; a table that says nothing else has edges `to` from l to t. Without
    `relations` there is `to`, between entities of the first type; without `entities` there are n, in one
    partition. `listed` are the tables of entities; `featurized` is a type.
    """
    entities = entities or {"n": 1}
    relations = relations or [("to", *[next(iter(entities))] * 2)]
    of_types = {
        name: {"num_partitions": count, "featurized": name == featurized} for name, count in entities.items()
    }
    tables = [{"path": tables}] if isinstance(tables, str) else tables
    raw = {
        "output": str(output),
        "dimension": 4,
        "dynamic_relations": dynamic,
        "entities": of_types,
        "relations": [
            {"name": name, "lhs": lhs, "rhs": rhs, "operator": operator} for name, lhs, rhs in relations
        ],
        "etl": {"tables": list(map(_complete, tables)), "entities": list(listed), **etl},
    }
    return from_mapping(raw | dict(top or {}))


def _complete(table: Mapping[str, Any]) -> dict[str, Any]:
    default = {} if {"relation", "relation_column"} & set(table) else {"relation": "to"}
    path = str(table["path"]) if isinstance(table["path"], Path) else table["path"]
    return {"lhs": "l", "rhs": "t"} | default | table | {"path": path}


def saved(config: Config, path: Path) -> tuple[str, Path]:
    """The words with which `forked` runs the stage; `path` gets the configuration."""
    path.write_bytes(pickle.dumps(config))
    return "tests.etl.graphs:run_saved", path


def run_saved() -> None:
    """Run the stage in a process of its own."""
    with cluster.connect(None, ClusterConfig(), is_small=True) as client:
        job.run(pickle.loads(Path(sys.argv[1]).read_bytes()), client)


def write_parquet(path: Path, row_group_rows: int = 1 << 20, **columns: Any) -> str:
    """A parquet file of the given columns; its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=row_group_rows)
    return str(path)


def write_table(path: Path, rows: list[dict[str, Any]], row_group_rows: int = 1 << 20) -> str:
    """A file of rows, in the format that its suffix says; its path."""
    table = pa.Table.from_pylist(rows)
    match path.suffix:
        case ".parquet":
            pq.write_table(table, path, row_group_size=row_group_rows)
        case ".orc":
            paorc.write_table(table, path)
        case ".csv":
            pacsv.write_csv(table, path)
        case ".jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    return str(path)


def index_of(config: Config) -> Index:
    """Raw ids by type and partition."""
    return {
        (name, part): entity_index.read_part(config.entity_path, name, part).to_pylist()
        for name, entity in config.entities.items()
        for part in range(entity.num_partitions)
    }


def read_raw_edges(config: Config, split: str, kind: str = EDGES) -> dict[Bucket, list[RawEdge]]:
    """Every edge of the split, mapped back to raw ids by the entity index, bucket by bucket.

    Of `removed` edges, some buckets have no file.
    """
    names = [relation.name for relation in config.relations]
    if config.dynamic_relations:
        names = entity_counts.read_relation_names(config.entity_path) or []
    ids = index_of(config)
    buckets = [Bucket(*each) for each in product(*(range(config.num_side_partitions(side)) for side in Side))]
    return {bucket: list(_raw_edges(config, split, bucket, kind, names, ids)) for bucket in buckets}


def _raw_edges(
    config: Config, split: str, bucket: Bucket, kind: str, names: list[str], ids: Index
) -> Iterator[RawEdge]:
    if kind != EDGES and not Path(bucket_uri(config.split_path(split), bucket, kind)).exists():
        return
    edges = edge_buckets.read_bucket(config.split_path(split), bucket, kind=kind)
    for row, (lhs, rel, rhs) in enumerate(zip(edges.lhs, edges.rel, edges.rhs, strict=True)):
        entry = config.relations[0 if config.dynamic_relations else rel]
        lhs_part, rhs_part = (
            part if config.entities[name].num_partitions > 1 else 0
            for name, part in zip((entry.lhs, entry.rhs), bucket, strict=True)
        )
        weight = None if edges.weight is None else float(edges.weight[row])
        yield RawEdge(
            *(entry.lhs, ids[entry.lhs, lhs_part][lhs], names[rel]),
            *(entry.rhs, ids[entry.rhs, rhs_part][rhs], weight),
        )


def all_edges(config: Config, split: str = "train") -> Counter[RawEdge]:
    """The edges of the split as a multiset."""
    return Counter(edge for edges in read_raw_edges(config, split).values() for edge in edges)


def files_under(folder: Path | str) -> dict[str, bytes]:
    """Relative path -> content of all files, hidden ones too; see `same_bytes`."""
    return same_bytes(contents(folder))


def as_anew(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Files of a run with earlier edges, but for what says which of them it has lost."""
    files = {name: each for name, each in files.items() if "/removed_" not in name}
    for name in files:
        if Path(name).name == "checksums.xxh128":
            lines = files[name].splitlines(keepends=True)
            files[name] = b"".join(line for line in lines if b"  removed_" not in line)
    return files


def content_under(folder: Path | str) -> dict[str, Any]:
    """Relative path -> content of all files, the same however rows are cut into raw files.

    Of a bucket, its edges; files without what says the raw files, and without checksums.
    """
    root = Path(folder)
    found: dict[str, Any] = {}
    for path, content in files_under(root).items():
        if path.endswith(".h5"):
            with h5py.File(root / path) as hdf5:
                names = [name for name in hdf5 if name not in ("origin", "origin_starts", "left_out_starts")]
                found[path] = {name: hdf5[name][:].tolist() for name in names}
        elif not path.endswith(("checksums.xxh128", "num_edges.json")):
            found[path] = content
    return found


def same_bytes(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Files by path without what names the raw files, which may be elsewhere or written at another time."""
    return {
        path: b"".join(line for line in content.splitlines(True) if not line.endswith(b"  origins.json\n"))
        if path.endswith("checksums.xxh128")
        else content
        for path, content in files.items()
        if not path.endswith("origins.json")
    }


def hash_of(text: str, seed: int) -> int:
    """Hash one string."""
    return int(hash_strings(pa.array([text], pa.string()), seed)[0])


def check_entities(config: Config, expected: Mapping[str, set[str]]) -> None:
    """The index holds exactly these raw ids, each once, where its hash says; counts and manifest agree."""
    manifest = entity_index.read_manifest(config.entity_path)
    assert manifest.num_partitions == {n: e.num_partitions for n, e in config.entities.items()}
    counts = entity_counts.read_counts(config.entity_path, manifest.num_partitions)
    for name, num_partitions in manifest.num_partitions.items():
        found: list[str] = []
        for partition in range(num_partitions):
            ids = entity_index.read_part(config.entity_path, name, partition).to_pylist()
            assert len(ids) == counts[name][partition]
            hashes = [hash_of(raw_id, manifest.seed) for raw_id in ids]
            assert all((h >> 32) * num_partitions >> 32 == partition for h in hashes)
            keys = [(h, raw_id.encode()) for h, raw_id in zip(hashes, ids, strict=True)]
            assert keys == sorted(keys)
            found += ids
        assert len(found) == len(set(found))
        assert set(found) == expected.get(name, set())
