"""Loads an export into LanceDB, and asks it for the nearest ids of one.

python examples/load_lancedb.py FOLDER TYPE DATABASE ID

FOLDER is an export of tables (parquet, npy or arrow), DATABASE a folder or a URI of LanceDB.
pip install lancedb
"""

import sys
from collections.abc import Iterator

import lancedb
import pyarrow as pa
from read_export import model_of, vectors

METRICS = {"dot": "dot", "cos": "cosine", "l2": "l2", "squared_l2": "l2"}


def batches(folder: str, entity_type: str, dimension: int) -> Iterator[pa.RecordBatch]:
    """Make batches of LanceDB's columns."""
    kind = pa.list_(pa.float32(), dimension)
    for ids, rows in vectors(folder, entity_type):
        flat = pa.array(rows.astype("float32").ravel())
        columns = [pa.array(ids, pa.string()), pa.FixedSizeListArray.from_arrays(flat, type=kind)]
        yield pa.record_batch(columns, names=["id", "vector"])


def main(folder: str, entity_type: str, database: str, raw_id: str) -> None:
    """Load, and print the five nearest ids."""
    model = model_of(folder)
    dimension = model["types"][entity_type]["dimension"]
    schema = pa.schema([("id", pa.string()), ("vector", pa.list_(pa.float32(), dimension))])
    rows = pa.RecordBatchReader.from_batches(schema, batches(folder, entity_type, dimension))
    table = lancedb.connect(database).create_table(entity_type, data=rows, mode="overwrite")
    quoted = raw_id.replace("'", "''")
    query = table.search().where(f"id = '{quoted}'").limit(1).to_list()[0]["vector"]
    found = table.search(query).distance_type(METRICS[model["comparator"]]).limit(5).to_list()
    for row in found:
        sys.stdout.write(f"{row['id']}\t{row['_distance']:.6f}\n")


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit("usage: python examples/load_lancedb.py FOLDER TYPE DATABASE ID")
    main(*sys.argv[1:])
