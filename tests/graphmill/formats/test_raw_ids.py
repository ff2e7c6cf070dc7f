"""Raw ids of every type as text, and CSV that users give, read as strictly as the tables of etl."""

import csv
import gzip
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from graphmill.ask import given
from graphmill.errors import RawTableError
from graphmill.formats.raw_ids import may_be_ids, strings_of
from graphmill.formats.raw_tables import rows as text_rows
from graphmill.formats.raw_tables.columns import column_names, iter_strings
from graphmill.report.maps import Labels
from train.tables.vector_files import VectorFiles

ONE = uuid.UUID(int=1)
IDS = {
    "é2": [pa.array(["é2".encode()], pa.binary(3))],
    "-2": [
        *(pa.array([-2], pa.int32()), pa.array([b"-2"], pa.binary())),
        pa.array([Decimal(-2)], pa.decimal32(9, 0)),
        pa.array([Decimal(-2)], pa.decimal128(38, 0)).dictionary_encode(),
    ],
    "7": [
        *(pa.array([7], kind) for kind in (pa.int8(), pa.uint64())),
        *(pa.array([Decimal(7)], kind) for kind in (pa.decimal32(3, 0), pa.decimal128(38, 0))),
        *(pa.array(["7"], kind) for kind in (pa.string(), pa.large_string(), pa.string_view())),
        *(pa.array([b"7"], kind) for kind in (pa.binary(), pa.binary_view(), pa.binary(1))),
        pa.array(["7"]).dictionary_encode(),
    ],
    "700": [pa.array([Decimal(700)], pa.decimal128(3, -2))],
    str(ONE): [pa.array([ONE.bytes], pa.uuid()), pa.array([bytes(16), ONE.bytes], pa.uuid())[1:]],
}
NO_IDS = [pa.float64(), pa.bool_(), pa.timestamp("us"), pa.decimal128(9, 2), pa.list_(pa.int64())]


def test_texts_of_all_types() -> None:
    for text, arrays in IDS.items():
        for array in arrays:
            assert may_be_ids(array.type)
            assert strings_of(array).to_pylist() == [text], array.type
    assert not any(map(may_be_ids, NO_IDS))
    for kind in (pa.binary(), pa.binary(1)):
        with pytest.raises(pa.ArrowInvalid):
            strings_of(pa.array([b"\xff"], kind))


@drawn(
    st.lists(st.decimals(-(10**38) + 1, 10**38 - 1, places=0)),
    st.lists(st.uuids() | st.none()),
    st.integers(0, 5),
)
def test_whole_decimals_have_digits_and_uuids_their_usual_text(decimals, uuids, start):
    found = strings_of(pa.array(decimals, pa.decimal128(38, 0)))
    assert found.to_pylist() == [str(int(each)) for each in decimals]
    found = strings_of(pa.array([each and each.bytes for each in uuids], pa.uuid())[start:])
    assert found.to_pylist() == [each and str(each) for each in uuids[start:]]


def test_files_of_users_have_ids_of_the_same_types(tmp_path: Path) -> None:
    for text in ("7", str(ONE)):
        for array in IDS[text][: 7 if text == "7" else 1]:
            path = str(tmp_path / "ids.parquet")
            pq.write_table(pa.table({"id": array, "embedding": [[1.0]]}), path)
            assert [each for table in given.iter_ids(path) for each in table["id"].to_pylist()] == [text]
            assert [each for batch in VectorFiles(path).batches() for each in batch.ids.to_pylist()] == [text]


READERS: dict[str, tuple[str, Callable[[str], object]]] = {
    "ids": ("id,age", lambda uri: list(given.iter_ids(uri))),
    "ids without a header": ("a,1", lambda uri: list(given.iter_ids(uri))),
    "pairs": ("lhs,rhs", lambda uri: list(given.iter_pairs(uri))),
    "labels of a map": ("id,label", lambda uri: Labels(uri).of(["a"])),
}
FAULTS = {
    'b,"2\nc,3\n': "line 3: the quote of a field that begins there is never closed",
    'b,"2"x\nc,3\n': "line 3: a quoted field that begins there goes on after its closing quote",
    "b,2,3\nc,3\n": "row [23]: expected 2 columns, found 3",
    "b,2\n\udcff,3\n": "UTF",
}


def test_text_that_is_no_csv_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "given.csv"
    for header, read in READERS.values():
        for fault, message in FAULTS.items():
            path.write_text(f"{header}\na,1\n{fault}", errors="surrogateescape")
            with pytest.raises(RawTableError, match=rf"given\.csv: .*{message}"):
                read(str(path))


@drawn(
    st.lists(st.tuples(*[st.text('ab",;\r\n é', min_size=1, max_size=6)] * 2), min_size=1, max_size=9),
    st.sampled_from(["\n", "\r\n"]),
    st.integers(1, 40),
    st.sampled_from(["rows.csv", "rows.csv.gz"]),
)
def test_any_rows_come_back_from_blocks_of_any_size(tmp_path, rows, end, chunk_bytes, name):
    path = tmp_path / name
    opened = gzip.open if name.endswith("gz") else open
    with opened(path, "wt", encoding="utf-8-sig", newline="") as file:
        csv.writer(file, lineterminator=end, quoting=csv.QUOTE_ALL).writerows([("id", "x"), *rows])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_rows, "CHUNK_BYTES", chunk_bytes)
        assert column_names(str(path)) == ["id", "x"]
        found = [row for part in iter_strings(str(path), [0, 1]) for row in zip(*part, strict=True)]
    assert [(lhs.as_py(), rhs.as_py()) for lhs, rhs in found] == rows
