"""Reads an export of tables: `graphmill export RUN --format parquet|npy|arrow --to FOLDER`, any precision.

python examples/read_export.py FOLDER TYPE    prints the first ids and vectors

It needs numpy and pyarrow, and nothing of GraphMill. Copy what you need.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as dataset
import pyarrow.parquet as pq


def model_of(folder: str | Path) -> dict[str, Any]:
    """Read how vectors are decoded and compared."""
    found: dict[str, Any] = json.loads(Path(folder, "_model.json").read_text(encoding="utf-8"))
    return found


def vectors(folder: str | Path, entity_type: str) -> Iterator[tuple[list[str], np.ndarray]]:
    """Read ids and float32 vectors [N, D], batch by batch."""
    model = model_of(folder)
    kind = model["types"][entity_type]
    tables = {name: np.load(Path(folder, path)) for name, path in kind["tables"].items()}
    for ids, stored, scale in _stored(Path(folder, entity_type), model["format"], kind):
        if kind["precision"] == "int8":
            yield ids, stored * tables["scales"][0] + tables["scales"][1]
        elif kind["precision"] == "pq":
            piece = np.arange(kind["dimension"]) * kind["num_codes"] // kind["dimension"]
            found = tables["centroids"][stored[:, piece], np.arange(kind["dimension"])].astype(np.float32)
            yield ids, found * np.asarray(scale, np.float32)[:, None]
        else:
            yield ids, np.asarray(stored, np.float32)


def _stored(folder: Path, file_format: str, kind: dict[str, Any]) -> Iterator[tuple[list[str], Any, Any]]:
    """Read ids, numbers or codes, and scales, as they are stored."""
    width = kind.get("num_codes", kind["dimension"])
    if file_format == "npy":
        for path in sorted(folder.glob("part-*.ids.parquet")):
            stem = str(path).removesuffix(".ids.parquet")
            scale = np.load(f"{stem}.scale.npy") if kind["precision"] == "pq" else None
            yield pq.read_table(path)["id"].to_pylist(), np.load(f"{stem}.npy", mmap_mode="r"), scale
        return
    files = sorted(map(str, folder.glob("part-*")))
    for batch in dataset.dataset(files, format="ipc" if file_format == "arrow" else "parquet").to_batches():
        if not len(batch):
            continue
        scale = batch["scale"].to_numpy(zero_copy_only=False) if "scale" in batch.schema.names else None
        column = batch["code" if kind["precision"] == "pq" else "embedding"]
        if pa.types.is_binary(column.type):
            flat = np.frombuffer(b"".join(column.to_pylist()), np.uint8)
        else:
            flat = column.flatten().to_numpy(zero_copy_only=False)
        yield batch["id"].to_pylist(), flat.reshape(-1, width), scale


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/read_export.py FOLDER TYPE")
    for names, rows in vectors(*sys.argv[1:]):
        for name, row in list(zip(names, rows, strict=True))[:5]:
            sys.stdout.write(f"{name}\t{row[:4]} ...\n")
        break
