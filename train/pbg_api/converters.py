"""PBG's import: edges in local files -> entity counts and bucket files, made by the stage etl; and downloads.

{entity_path}.importing/     while the import runs; a killed import is done again
    {number}.parquet         what the reader has read of each file
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
from graphmill.cli.stages import ETL
from graphmill.config import Config, from_mapping
from graphmill.config.partitions import all_keys
from graphmill.errors import ConfigError, RawTableError
from graphmill.formats import edge_buckets, entity_counts
from graphmill.run import lock
from graphmill.vocab import Bucket

_BATCH_ROWS = 1 << 18
_SCHEMA = pa.schema([(name, pa.string()) for name in ("lhs", "rhs", "relation")])

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
        """Yield the edges of a file."""
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
        ConfigError: the numbers of paths differ, or files of another program are in the way.
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
    raw: dict[str, Any] = {
        "entity_path": storage.absolute(str(entity_path)).rstrip("/"),
        "edge_paths": [storage.absolute(str(path)) for path in edge_paths_out],
        "entities": {name: {"num_partitions": kind.num_partitions} for name, kind in entity_configs.items()},
        "relations": [
            {"name": config.name, "lhs": config.lhs, "rhs": config.rhs} for config in relation_configs
        ],
        "dynamic_relations": dynamic_relations,
        "dimension": 1,  # of no consequence for etl, as is the checkpoint
    }
    temporary = f"{raw['entity_path']}.importing"
    settings = from_mapping(raw | {"checkpoint_path": temporary})
    uris = [edge_buckets.bucket_uri(path, Bucket(0, 0)) for path in settings.edge_paths]
    uris += [entity_counts.count_uri(settings.entity_path, *key) for key in all_keys(settings)]
    if not storage.exists(temporary) and all(map(storage.exists, uris)):
        log.info("importing: the graph is in %s and its edge paths already", settings.entity_path)
        return
    with lock.held(whole=[temporary]):
        tables = _write_raw(reader, edge_paths_in, settings, temporary)
        etl = {"tables": tables, "entity_names": True}
        settings = from_mapping(raw | {"checkpoint_path": temporary, "etl": etl})
        with (
            lock.held(whole=ETL.job.written_uris(settings)) as claim,
            cluster.connect(None, settings.cluster) as client,
        ):
            ETL.job.run(settings, client, claim)
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


def _write_raw(
    reader: EdgelistReader, inputs: Sequence[Path], settings: Config, folder: str
) -> list[dict[str, Any]]:
    """Write input files as tables of etl, one split per edge path; no relation means the first, as in PBG."""
    tables = []
    for number, (path, split) in enumerate(zip(inputs, settings.edge_path_splits, strict=True)):
        raw = storage.join(folder, f"{number}.parquet")
        rows = iter(reader.read(Path(path)))
        with storage.atomic_output(raw) as stream, pq.ParquetWriter(stream, _SCHEMA) as parquet:
            while batch := list(islice(rows, _BATCH_ROWS)):
                lhs, rhs, names = (pa.array(column, pa.string()) for column in zip(*batch, strict=True))
                relation = names.fill_null(settings.relations[0].name)
                parquet.write_batch(pa.record_batch([lhs, rhs, relation], schema=_SCHEMA))
        table = {"path": raw, "lhs": "lhs", "rhs": "rhs", "relation_column": "relation", "split": split}
        tables.append(table)
    return tables
