"""faiss alone on the lists of `graphmill predict`.

    python -m bench.topk_faiss INDEX RUN K NUM_PROBED OUT

Prints JSON: seconds to load lists and queries, to search, to write scores and numbers, and to write raw ids
in parquet too, as a user has to; CPU seconds. Answers are those of the inner product, in one process with as
many threads as OMP_NUM_THREADS says.
"""

import json
import resource
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import faiss
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS_OF_A_GROUP = 1 << 20


def load(index_path: Path) -> tuple[Any, Any]:
    """Make faiss's index of the same centers and lists; the centers must live as long as it."""
    part_first = json.loads((index_path / "lists.json").read_text())["part_first"]
    with h5py.File(index_path / "centers.h5") as centers, h5py.File(index_path / "sizes.h5") as sizes:
        center_LD, first_L1 = centers["centers"][:], sizes["first"][:]
    coarse = faiss.IndexFlatIP(center_LD.shape[1])
    coarse.add(center_LD)
    found: Any = faiss.IndexIVFFlat(coarse, center_LD.shape[1], len(center_LD), faiss.METRIC_INNER_PRODUCT)
    found.is_trained = True
    for part, (start, stop) in enumerate(pairwise(part_first)):
        with h5py.File(index_path / f"part-{part:05d}.h5") as hdf5:
            vectors_ND, numbers = hdf5["vectors"][:], hdf5["numbers"][:]
        for each in range(start, stop):
            rows = slice(first_L1[each] - first_L1[start], first_L1[each + 1] - first_L1[start])
            if rows.start < rows.stop:
                codes = np.ascontiguousarray(vectors_ND[rows]).view(np.uint8)
                own = np.ascontiguousarray(numbers[rows])
                found.invlists.add_entries(each, len(own), faiss.swig_ptr(own), faiss.swig_ptr(codes))
    found.ntotal = int(first_L1[-1])
    return found, coarse


def names(run: Path, kind: str) -> pa.ChunkedArray:
    """All raw ids of a type, by number."""
    files = sorted((run / "entities/entity_index" / kind).glob("part-*.parquet"))
    ids = pa.concat_tables([pq.read_table(path, columns=["id"]) for path in files])["id"]
    return ids.cast(pa.large_string()).combine_chunks()


def write_ids(run: Path, score_UK: np.ndarray, number_UK: np.ndarray, path: Path) -> None:
    """Write id, rank, candidate and score of all answers."""
    users, items = names(run, "user"), names(run, "item")
    k = score_UK.shape[1]
    step = ROWS_OF_A_GROUP // k
    schema = pa.schema(
        {"id": pa.string(), "rank": pa.int32(), "candidate": pa.string(), "score": pa.float32()}
    )
    with pq.ParquetWriter(path, schema, compression="zstd") as parquet:
        for start in range(0, len(score_UK), step):
            score, number = (each[start : start + step] for each in (score_UK, number_UK))
            user, rank = np.repeat(np.arange(len(score)), k), np.tile(np.arange(1, k + 1), len(score))
            columns = [
                users.slice(start, step).take(pa.array(user)).cast(pa.string()),
                pa.array(rank.astype(np.int32)),
                items.take(pa.array(number.reshape(-1))).cast(pa.string()),
                pa.array(score.reshape(-1)),
            ]
            parquet.write_table(pa.table(columns, schema=schema))


def main(index_path: Path, run: Path, k: int, num_probed: int, out: Path) -> None:
    """Answer for all users."""
    times = [time.monotonic()]
    index, _coarse = load(index_path)
    index.nprobe = num_probed
    files = sorted(
        (run / "checkpoint").glob("embeddings_user_*.h5"),
        key=lambda path: int(path.name.split("_")[2].split(".")[0]),
    )
    queries = []
    for path in files:
        with h5py.File(path) as hdf5:
            queries.append(hdf5["embeddings"][:])
    query_UD = np.concatenate(queries)
    times.append(time.monotonic())
    score_UK, number_UK = index.search(query_UD, k)
    times.append(time.monotonic())
    np.save(out / "scores.npy", score_UK)
    np.save(out / "numbers.npy", number_UK)
    times.append(time.monotonic())
    write_ids(run, score_UK, number_UK, out / "faiss.parquet")
    times.append(time.monotonic())
    usage = resource.getrusage(resource.RUSAGE_SELF)
    parts = ("load_s", "search_s", "write_s", "ids_s")
    seconds = dict(zip(parts, np.diff(times).tolist(), strict=True))
    print(json.dumps(seconds | {"cpu_s": usage.ru_utime + usage.ru_stime}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
