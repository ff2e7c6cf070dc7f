"""The whole import in one DuckDB process: edge tables -> id maps, counts, and P x P bucket files.

python -m bench.duckdb_import NUM_THREADS NUM_PARTITIONS INPUT_FOLDER OUTPUT_FOLDER RELATION:LHS:RHS...

{output}/ids-{type}-{partition}.parquet      id, index
{output}/entity_count_{type}_{partition}.txt
{output}/edges_{l}_{r}.h5                    lhs, rel, rhs (int32, contiguous), like ours
"""

import sys
from pathlib import Path

import duckdb
import h5py

IDS = """
CREATE TABLE ids AS
SELECT type, id, part, row_number() OVER (PARTITION BY type, part ORDER BY hash, id) - 1 AS index
FROM (
    SELECT type, id, hash(id) AS hash, (hash(id) >> 32) * {num_partitions} >> 32 AS part
    FROM (
        SELECT lhs_type AS type, lhs AS id FROM edges JOIN relations USING (rel)
        UNION
        SELECT rhs_type AS type, rhs AS id FROM edges JOIN relations USING (rel)
    )
)
"""

BUCKETS = """
CREATE TABLE buckets AS
SELECT
    (l.part * {num_partitions} + r.part)::SMALLINT AS bucket,
    l.index::INTEGER AS lhs, relations.number AS rel, r.index::INTEGER AS rhs
FROM edges
JOIN relations USING (rel)
JOIN ids AS l ON l.id = edges.lhs AND l.type = lhs_type
JOIN ids AS r ON r.id = edges.rhs AND r.type = rhs_type
"""


def main(threads: str, partitions: str, source: str, target: str, *relations: str) -> None:
    num_partitions, output = int(partitions), Path(target)
    output.mkdir(parents=True)
    with duckdb.connect(config={"threads": int(threads), "temp_directory": str(output / "spill")}) as base:
        base.execute("SET preserve_insertion_order = false")
        base.execute(
            "CREATE TABLE relations (rel VARCHAR, number INTEGER, lhs_type VARCHAR, rhs_type VARCHAR)"
        )
        for number, relation in enumerate(relations):
            name, lhs, rhs = relation.split(":")
            base.execute("INSERT INTO relations VALUES (?, ?, ?, ?)", [name, number, lhs, rhs])
        base.execute(f"CREATE VIEW edges AS SELECT * FROM read_parquet('{source}/*.parquet')")
        base.execute(IDS.format(num_partitions=num_partitions))
        for entity_type, part, count in base.execute(
            "SELECT type, part, count(*) FROM ids GROUP BY ALL ORDER BY ALL"
        ).fetchall():
            (output / f"entity_count_{entity_type}_{part}.txt").write_text(f"{count}\n")
            base.execute(
                f"COPY (SELECT id, index FROM ids WHERE type = '{entity_type}' AND part = {part}) "
                f"TO '{output}/ids-{entity_type}-{part}.parquet' (FORMAT parquet, COMPRESSION zstd)"
            )
        base.execute(BUCKETS.format(num_partitions=num_partitions))
        for bucket in range(num_partitions**2):
            columns = base.execute(f"SELECT lhs, rel, rhs FROM buckets WHERE bucket = {bucket}").fetchnumpy()
            path = output / f"edges_{bucket // num_partitions}_{bucket % num_partitions}.h5"
            with h5py.File(path, "w") as hdf5:
                hdf5.attrs["format_version"] = 1
                for name, values in columns.items():
                    hdf5.create_dataset(name, data=values, dtype="int32")


if __name__ == "__main__":
    main(*sys.argv[1:])
