"""GraphStorm's maps from raw ids to integers, with files of GraphStorm."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from graphmill.checkpoints.graphstorm import id_maps
from tests import DATA


def test_maps(tmp_path: Path) -> None:
    batches = [pa.array(["b", "a"]), pa.array([], pa.string()), pa.array(["é"])]
    id_maps.write_raw_id_map(str(tmp_path), "user", 2, 10, batches)
    found = pq.read_table(tmp_path / "raw_id_mappings/user/part-00002.parquet")
    assert found.to_pydict() == {"orig": ["b", "a", "é"], "new": [10, 11, 12]}


def test_the_schema_is_that_of_graphstorm() -> None:
    golden = sorted((DATA / "graphstorm/raw_id_mappings").rglob("*.parquet"))
    assert golden
    for path in golden:
        schema = pq.read_schema(path)
        assert schema.names == id_maps.SCHEMA.names
        assert schema.field("new").type == id_maps.SCHEMA.field("new").type
        assert schema.field("orig").type in (pa.string(), pa.int64())
