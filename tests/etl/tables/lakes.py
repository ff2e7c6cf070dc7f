"""Tables of Delta Lake and Iceberg for the tests, and their rows as a table's entry reads them."""

import base64
import datetime
import json
import struct
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyroaring import BitMap64

from etl.tables.check_rows import Rules
from etl.tables.files import TableFiles, find_files
from etl.tables.ranges import find_ranges
from etl.tables.read import read_blocks
from graphmill import storage
from graphmill.config.sections.etl import TableConfig
from tests.etl.graphs import config_of

FIELDS = ("lhs", "rhs", "relation", "weight")
DAYS = [datetime.date(2026, 11, day) for day in (1, 1, 2)]
ROWS = pa.table({"u": ["a", "b", "c"], "i": ["x", "y", "z"], "n": [1, 2, 3], "day": DAYS})
EDGES: dict[str, Any] = {"lhs": "u", "rhs": "i", "relation": "bought"}
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"


def _at(day: int, zone: datetime.tzinfo | None = None) -> datetime.datetime:
    return datetime.datetime(2026, 11, day, 12, 30, tzinfo=zone)


TYPED = pa.table(
    {
        "u": [str(n) for n in range(6)],
        "i": ["x"] * 6,
        "long": pa.array([1, 2, 3, None, 5, 6], pa.int64()),
        "real": [0.5, 1.5, None, 3.5, 4.5, 5.5],
        "flag": [True, False, None, True, False, True],
        "text": ["a", "b/c", "ä=", None, "", "07"],
        "day": [datetime.date(2026, 11, n) for n in range(1, 6)] + [None],
        "time": pa.array([_at(n) for n in range(1, 6)] + [None], pa.timestamp("us")),
        "zoned": pa.array([_at(n, datetime.UTC) for n in range(1, 6)] + [None], pa.timestamp("us", "UTC")),
        "money": [Decimal("1.50"), Decimal("2.25"), None, Decimal("4.00"), Decimal("5.00"), Decimal("6.00")],
        "bytes": [b"a", b"\xff", None, b"c", b"d", b"e"],
    }
)
VALUES: dict[str, Any] = {
    **{"long": 3, "real": 1.5, "flag": True, "text": "b/c", "day": "2026-11-03"},
    **{"time": "2026-11-03 12:30:00", "zoned": "2026-11-03 12:30:00", "money": "4.00"},
}


def filters_on(column: str) -> Iterator[tuple[Any, list[str]]]:
    """Filters on a column of `TYPED`, and the u of the rows that pass, by pyarrow."""
    kind, value = TYPED.schema.field(column).type, VALUES[column]
    naive = pa.timestamp("us") if pa.types.is_timestamp(kind) else kind
    scalar = pa.scalar(value).cast(naive).cast(kind) if isinstance(value, str) else pa.scalar(value)
    compare = {"==": pc.equal, "!=": pc.not_equal}
    if column != "flag":
        compare |= {"<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal}
    for operator, function in compare.items():
        yield [[column, operator, value]], TYPED.filter(function(TYPED[column], scalar))["u"].to_pylist()
    yield [[column, "==", None]], TYPED.filter(pc.is_null(TYPED[column]))["u"].to_pylist()
    yield [[column, "in", [value]]], TYPED.filter(pc.equal(TYPED[column], scalar))["u"].to_pylist()


def found_in(path: Any, top: Mapping[str, Any] | None = None, **entry: Any) -> TableFiles:
    """Files that an entry of the configuration names; `path` may be a table of Iceberg."""
    path = root_of(path) if isinstance(path, Table) else path
    table = EDGES | {"path": path if isinstance(path, list) else str(path)} | entry
    config = config_of("/nowhere", [table], relations=[("bought", "n", "n")], top=top)
    return find_files(config, TableConfig(**table), "tables[0]")


def rows_of(path: Any, chunk_rows: int = 1000, **entry: Any) -> list[tuple[Any, ...]]:
    """The rows that an entry of the configuration reads, sorted; bad rows are left out."""
    return read(path, chunk_rows, **entry)[0]


def read(
    path: Any, chunk_rows: int = 1000, **entry: Any
) -> tuple[list[tuple[Any, ...]], list[tuple[str, int]]]:
    """The sorted rows that an entry reads; and the reasons and numbers of bad rows."""
    found = found_in(path, **entry)
    rows: list[tuple[Any, ...]] = []
    bad_rows: list[tuple[str, int]] = []
    for file in found.files():
        for source in find_ranges(found.table, file, chunk_rows):
            for good, bad in read_blocks(source, chunk_rows, Rules(quarantines=True)):
                rows += [tuple(row[each] for each in FIELDS if each in row) for row in good.to_pylist()]
                bad_rows += [(each.reason, int(row)) for each in bad for row in each.rows]
    return sorted(rows), sorted(bad_rows)


@contextmanager
def opened_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the files that are opened meanwhile."""
    opened: list[str] = []
    open_input = storage.open_input

    def counting(uri: str) -> Any:
        opened.append(storage.name(uri))
        return open_input(uri)

    with monkeypatch.context() as patched:
        patched.setattr(storage, "open_input", counting)
        yield opened


def check_pruning(path: Any, cases: Sequence[tuple[Any, int, list[str]]], patch: pytest.MonkeyPatch) -> None:
    """Check that filters leave so many files of a table, which alone are opened, and rows with these u."""
    for filters, num_files, rows in cases:
        assert len(found_in(path, filters=filters).files()) == num_files
        with opened_files(patch) as opened:
            assert [row[0] for row in rows_of(path, filters=filters)] == rows
        assert len({name for name in opened if name.endswith(".parquet")}) == num_files


def root_of(table: Table) -> Path:
    """The folder of a table of Iceberg."""
    return Path(table.location().removeprefix("file://"))


def iceberg_table(folder: Path, rows: pa.Table, *fields: Any) -> Table:
    """The table `sales.orders` of the catalog in a folder, with rows, partitioned by fields."""
    made = catalog_at(folder).create_table("sales.orders", schema=rows.schema)
    if fields:
        with made.update_spec() as spec:
            for each in fields:
                spec.add_field(*each)
    made.append(rows)
    return made


def catalog_at(folder: Path) -> SqlCatalog:
    """A catalog of Iceberg in a file of SQLite, with a namespace `sales`."""
    catalog = SqlCatalog("shop", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
    catalog.create_namespace_if_not_exists("sales")
    return catalog


def z85(content: bytes) -> str:
    """Bytes in ZeroMQ's base 85, padded to groups of four."""
    padded = content + b"\0" * (-len(content) % 4)
    return base64.b85encode(padded).decode().translate(str.maketrans(_B85, _Z85))


def deletion_vector(folder: Path, rows: Sequence[int], kind: str) -> dict[str, Any]:
    """A deletion vector as a log of Delta Lake describes it; kinds u and p write a file."""
    body = (1681511377).to_bytes(4, "little") + BitMap64(rows).serialize()
    described = {"storageType": kind, "sizeInBytes": len(body), "cardinality": len(rows)}
    if kind == "i":
        return described | {"pathOrInlineDv": z85(body)}
    number = uuid.uuid4()
    path = folder / ("ab" if kind == "u" else "") / f"deletion_vector_{number}.bin"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"\1" + struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body)))
    place = "ab" + z85(number.bytes) if kind == "u" else f"file://{path}"
    return described | {"pathOrInlineDv": place, "offset": 1}


def puffin(vectors: Mapping[str, bytes], **described: Any) -> bytes:
    """A file of Puffin with deletion vectors of data files (bitmaps); descriptions are changed."""
    content, blobs = b"PFA1", []
    for name, bitmap in vectors.items():
        vector = b"\xd1\xd3\x39\x64" + bitmap
        blob = struct.pack(">I", len(vector)) + vector + struct.pack(">I", zlib.crc32(vector))
        whole = {"type": "deletion-vector-v1", "fields": [], "snapshot-id": -1, "sequence-number": -1}
        whole |= {"offset": len(content), "length": len(blob), "properties": {"referenced-data-file": name}}
        blobs.append(whole | described)
        content += blob
    footer = json.dumps({"blobs": blobs}).encode()
    return content + b"PFA1" + footer + struct.pack("<iI", len(footer), 0) + b"PFA1"


def write_mapped_delta(
    folder: Path, files: Mapping[str, pa.Table], vectors: Mapping[str, Any], mode: str = "name"
) -> None:
    """A table of Delta Lake as Spark writes it: columns with other names in files, deletion vectors.

    Columns: u string, ev struct<item string>, n long; partitioned by day, 2026-11-01. In the files they are
    called c1, c2, c3 in c2, c4, and have these numbers.
    """
    item = _field("item", "string", 3)
    kinds = {"u": ("string", 1), "ev": ({"type": "struct", "fields": [item]}, 2), "n": ("long", 4)}
    fields = [_field(name, *each) for name, each in (kinds | {"day": ("date", 5)}).items()]
    features = ["columnMapping", "deletionVectors"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
    settings = {"delta.columnMapping.mode": mode, "delta.columnMapping.maxColumnId": "5"}
    about = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": ["day"],
        "createdTime": 1,
        "configuration": settings | {"delta.enableDeletionVectors": "true"},
    }
    actions: list[dict[str, Any]] = [
        {"protocol": protocol | {"readerFeatures": features, "writerFeatures": features}},
        {"metaData": about},
    ]
    (folder / "_delta_log").mkdir(parents=True, exist_ok=True)
    for name, rows in files.items():
        pq.write_table(rows, folder / name, row_group_size=2)
        add = {"path": quote(name), "partitionValues": {"c5": "2026-11-01"}, "modificationTime": 1}
        add |= {"size": (folder / name).stat().st_size, "dataChange": True}
        own = {"deletionVector": vectors[name]} if name in vectors else {}
        statistics = json.dumps({"numRecords": rows.num_rows})
        actions.append({"add": add | {"stats": statistics} | own})
    text = "\n".join(map(json.dumps, actions))
    (folder / "_delta_log/00000000000000000000.json").write_text(text)


def _field(name: str, kind: Any, number: int) -> dict[str, Any]:
    mapping = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"c{number}"}
    return {"name": name, "type": kind, "nullable": True, "metadata": mapping}
