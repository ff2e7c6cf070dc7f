"""PBG's import: edges in local files -> entity counts and bucket files, made by the stage etl; and downloads.

    {entity_path}.importing/     while the import runs; a killed import is done again
        raw/{number}.parquet     what the reader has read of each file
        entities/  edges/        output of etl; its files are then moved to entity_path and edge_paths

Files of the user in these folders stay. Files of an earlier import are never replaced.
"""

import gzip
import logging
import shutil
import tarfile
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.parquet as pq

from graphmill import cluster, storage
from graphmill.config import from_mapping
from graphmill.errors import ConfigError, RawTableError
from graphmill.formats import edge_buckets, entity_counts
from graphmill.run import lock
from graphmill.run.job import job_of
from graphmill.vocab import TRAIN_SPLIT, Bucket

_BATCH_ROWS = 1 << 18
_COLUMNS = ("lhs", "rhs", "relation")

log = logging.getLogger("graphmill")

Row = tuple[str, str, str | None]


class EdgelistReader(ABC):
    """Reads edges; a subclass may read any format."""

    @abstractmethod
    def read(self, path: Path) -> Iterable[Row]:
        """Yield (lhs, rhs, relation) of each edge; the relation may be None."""


class TSVEdgelistReader(EdgelistReader):
    """Reads text with one edge per line; columns count from 0."""

    def __init__(self, lhs_col: int, rhs_col: int, rel_col: int | None, delimiter: str | None = None) -> None:
        """Without a delimiter, any white space divides columns."""
        self.lhs_col, self.rhs_col, self.rel_col, self.delimiter = lhs_col, rhs_col, rel_col, delimiter

    def read(self, path: Path) -> Iterator[Row]:
        """Yield the edges of a file.

        Raises:
            RawTableError: a line has too few columns.
        """
        needed = max(self.lhs_col, self.rhs_col, self.rel_col or 0) + 1
        with Path(path).open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                words = line.rstrip("\n").split(self.delimiter)
                if len(words) < needed:
                    raise RawTableError(
                        f"{path}: line {number}: expected {needed} columns, found {len(words)}"
                    )
                relation = None if self.rel_col is None else words[self.rel_col]
                yield words[self.lhs_col], words[self.rhs_col], relation


def convert_input_data(
    entity_configs: Mapping[str, Any],
    relation_configs: Sequence[Any],
    entity_path: str,
    edge_paths_out: Sequence[str],
    edge_paths_in: Sequence[Path],
    lhs_col: int | EdgelistReader | None = None,
    rhs_col: int | None = None,
    rel_col: int | None = None,
    entity_min_count: int = 1,
    relation_type_min_count: int = 1,
    dynamic_relations: bool = False,
    *,
    edgelist_reader: EdgelistReader | None = None,
) -> None:
    """Import each of `edge_paths_in` into the folder with the same place in `edge_paths_out`.

    Nothing is done where the files of the graph are there already. Columns are as in PBG's release 1.0.0;
    a reader, also in the place of `lhs_col`, is as in PBG's repository.

    Raises:
        ConfigError: the numbers of paths differ, or only some of the files are there.
        RawTableError: a line has too few columns, or names an unknown relation.
    """
    if len(edge_paths_in) != len(edge_paths_out):
        raise ConfigError(
            f"expected one output for each input, found {list(map(str, edge_paths_in))} and "
            f"{list(map(str, edge_paths_out))}"
        )
    if max(entity_min_count, relation_type_min_count) > 1:
        raise ConfigError(
            "entity_min_count, relation_type_min_count: expected 1, which keeps all, found more; use "
            "`graphmill etl` with etl.min_entity_count, etl.min_relation_count"
        )
    reader = lhs_col if isinstance(lhs_col, EdgelistReader) else edgelist_reader
    if reader is None and isinstance(lhs_col, int) and rhs_col is not None:
        reader = TSVEdgelistReader(lhs_col, rhs_col, rel_col)
    if reader is None:
        raise ConfigError("lhs_col, rhs_col: missing, as is a reader; give one or the other")
    outputs = [storage.absolute(str(path)) for path in edge_paths_out]
    entity_path = storage.absolute(str(entity_path))
    temporary = f"{entity_path.rstrip('/')}.importing"
    with lock.held(whole=[temporary]) as claim:
        if _is_there(entity_path, outputs, entity_configs, temporary):
            log.info("importing: the graph is in %s and its edge paths already", entity_path)
            return
        splits = [TRAIN_SPLIT, *(f"split-{number}" for number in range(1, len(outputs)))]
        raws = [storage.join(temporary, "raw", f"{number}.parquet") for number in range(len(outputs))]
        has_relation = [
            _write_raw(reader, Path(path), raw) for path, raw in zip(edge_paths_in, raws, strict=True)
        ]
        settings = from_mapping(
            {
                "output": temporary,
                "entities": {
                    name: {"num_partitions": each.num_partitions} for name, each in entity_configs.items()
                },
                "relations": [
                    {"name": each.name, "lhs": each.lhs, "rhs": each.rhs} for each in relation_configs
                ],
                "dimension": 1,  # of no consequence for etl
                "dynamic_relations": dynamic_relations,
                "etl": {
                    "tables": _tables(raws, splits, has_relation, relation_configs),
                    "entity_names": True,
                },
            }
        )
        options = settings.section(cluster.ClusterConfig)
        with cluster.connect(None, options) as client:
            job_of("etl").run(settings, client, claim)
        for split, output in zip(splits, outputs, strict=True):
            _move_files(settings.split_path(split), output)
        _move_files(settings.entity_path, entity_path)
        storage.delete(temporary)


def download_url(url: str, root: Path, filename: str | None = None) -> Path:
    """Download a file into the folder `root`, unless it is there; returns its path."""
    path = Path(root).expanduser() / (filename or Path(urlparse(url).path).name)
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.download")
        urllib.request.urlretrieve(url, temporary)
        temporary.replace(path)
    return path


def extract_tar(fpath: Path) -> None:
    """Unpack a .tar.gz beside itself; names that lead elsewhere are refused."""
    with tarfile.open(fpath, "r:gz") as archive:
        archive.extractall(Path(fpath).parent, filter="data")


def extract_gzip(gzip_path: Path, remove_finished: bool = False) -> Path:
    """Unpack NAME.gz as NAME, unless that is there; returns its path."""
    path = Path(gzip_path)
    if path.suffix != ".gz":
        raise ConfigError(f"{path}: expected a name that ends with .gz")
    target = path.with_suffix("")
    if not target.exists():
        temporary = target.with_name(f".{target.name}.unpacking")
        with gzip.open(path) as packed, temporary.open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked)
        temporary.replace(target)
    if remove_finished:
        path.unlink()
    return target


def _is_there(
    entity_path: str, outputs: Sequence[str], entity_configs: Mapping[str, Any], temporary: str
) -> bool:
    """Whether all files of the graph are there; only an import that was killed leaves some of them.

    Raises:
        ConfigError: there are some of them.
    """
    if storage.exists(temporary):
        return False
    uris = [edge_buckets.bucket_uri(path, Bucket(0, 0)) for path in outputs]
    uris += [
        entity_counts.count_uri(entity_path, name, partition)
        for name, each in entity_configs.items()
        for partition in range(each.num_partitions)
    ]
    there = [uri for uri in uris if storage.exists(uri)]
    if there and len(there) < len(uris):
        missing = next(uri for uri in uris if uri not in there)
        raise ConfigError(
            f"{there[0]} is there, and {missing} is not: these folders hold another graph; delete it, or "
            "choose other folders"
        )
    return bool(there)


def _write_raw(reader: EdgelistReader, path: Path, uri: str) -> bool:
    """Write what the reader reads as parquet; returns whether its edges have relations."""
    rows = iter(reader.read(path))
    batch = list(islice(rows, _BATCH_ROWS))
    has_relation = bool(batch) and batch[0][2] is not None
    columns = _COLUMNS if has_relation else _COLUMNS[:2]
    schema = pa.schema([(name, pa.string()) for name in columns])
    with storage.atomic_output(uri) as stream, pq.ParquetWriter(stream, schema) as parquet:
        while batch:
            values = list(zip(*batch, strict=True))[: len(columns)]
            parquet.write_batch(
                pa.record_batch([pa.array(each, pa.string()) for each in values], schema=schema)
            )
            batch = list(islice(rows, _BATCH_ROWS))
    return has_relation


def _tables(
    raws: Sequence[str], splits: Sequence[str], has_relation: Sequence[bool], relation_configs: Sequence[Any]
) -> list[dict[str, Any]]:
    """The tables of etl; edges without relations are of the first one, as in PBG."""
    tables = []
    for raw, split, has in zip(raws, splits, has_relation, strict=True):
        relation = {"relation_column": "relation"} if has else {"relation": relation_configs[0].name}
        tables.append({"path": raw, "lhs": "lhs", "rhs": "rhs", "split": split, **relation})
    return tables


def _move_files(source: str, target: str) -> None:
    """Move all files of a folder and its subfolders, those of the top level last."""
    entries = [each for each in storage.list_dir(source, recursive=True) if not each.is_dir]
    for entry in sorted(entries, key=lambda each: -each.uri.count("/")):
        place = storage.join(target, entry.uri.removeprefix(source.rstrip("/") + "/"))
        storage.make_dir(storage.parent(place))
        storage.move(entry.uri, place)
