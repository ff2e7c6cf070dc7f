"""Raw ids of every type as text, and types that are no ids."""

import uuid
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from graphmill.ask import given
from graphmill.formats.raw_ids import may_be_ids, strings_of
from train.tables.vector_files import VectorFiles

ONE = uuid.UUID(int=1)
IDS = {
    "7": [
        *(pa.array([7], kind) for kind in (pa.int8(), pa.uint64())),
        *(pa.array([Decimal(7)], kind) for kind in (pa.decimal32(3, 0), pa.decimal128(38, 0))),
        *(pa.array(["7"], kind) for kind in (pa.string(), pa.large_string(), pa.string_view())),
        *(
            pa.array([b"7"], kind)
            for kind in (pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(1))
        ),
        pa.array(["7"]).dictionary_encode(),
    ],
    "700": [pa.array([Decimal(700)], pa.decimal128(3, -2))],
    str(ONE): [pa.array([ONE.bytes], pa.uuid())],
}
NO_IDS = [
    pa.float64(),
    pa.bool_(),
    pa.date32(),
    pa.timestamp("us"),
    pa.decimal128(9, 2),
    pa.list_(pa.int64()),
]


def test_texts_of_all_types() -> None:
    for text, arrays in IDS.items():
        for array in arrays:
            assert may_be_ids(array.type)
            assert strings_of(array).to_pylist() == [text], array.type
    assert not any(map(may_be_ids, NO_IDS))
    for kind in (pa.binary(), pa.binary(1)):
        with pytest.raises(pa.ArrowInvalid):
            strings_of(pa.array([b"\xff"], kind))


def test_files_of_users_have_ids_of_the_same_types(tmp_path: Path) -> None:
    for text in ("7", str(ONE)):
        for array in IDS[text][: 7 if text == "7" else 1]:
            path = str(tmp_path / "ids.parquet")
            pq.write_table(pa.table({"id": array, "embedding": [[1.0]]}), path)
            assert [each for table in given.iter_ids(path) for each in table["id"].to_pylist()] == [text]
            assert [each for batch in VectorFiles(path).batches() for each in batch.ids.to_pylist()] == [text]
