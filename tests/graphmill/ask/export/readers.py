"""Readers of exports that share nothing with the writers: by pyarrow, numpy and `_model.json` alone."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

Vectors = dict[str, np.ndarray]  # by raw id


def read(folder: Path, entity_type: str) -> Vectors:
    """The decoded vectors of a type, by raw id."""
    model = json.loads((folder / "_model.json").read_text())
    kind = model["types"][entity_type]
    tables = {name: np.load(folder / path) for name, path in kind["tables"].items()}
    found: Vectors = {}
    for ids, values, scale in _pieces(folder / entity_type, model["format"], kind):
        rows = values
        if kind["precision"] == "int8":
            rows = values.astype(np.float32) * tables["scales"][0] + tables["scales"][1]
        elif kind["precision"] == "pq":
            dimension = kind["dimension"]
            piece = np.arange(dimension) * kind["num_codes"] // dimension
            rows = tables["centroids"].astype(np.float32)[values[:, piece], np.arange(dimension)]
            rows = rows if scale is None else rows * np.asarray(scale, np.float32)[:, None]
        for raw_id, row in zip(ids, rows, strict=True):
            assert raw_id not in found
            found[raw_id] = np.asarray(row, np.float32)
    assert len(found) == kind["num_rows"]
    return found


def _pieces(folder: Path, file_format: str, kind: dict[str, Any]) -> Iterator[tuple[list[str], Any, Any]]:
    match file_format:
        case "parquet":
            for path in sorted(folder.glob("part-*.parquet")):
                yield _columns(pq.read_table(path, partitioning=None), kind)
        case "arrow":
            for path in sorted(folder.glob("part-*.arrow")):
                with pa.memory_map(str(path)) as source:
                    yield _columns(pa.ipc.open_file(source).read_all(), kind)
        case "npy":
            for path in sorted(folder.glob("part-*.npy")):
                if path.name.endswith(".scale.npy"):
                    continue
                ids = pq.read_table(path.with_suffix(".ids.parquet"), partitioning=None)["id"].to_pylist()
                scale = path.with_suffix(".scale.npy")
                yield ids, np.load(path, mmap_mode="r"), np.load(scale) if scale.exists() else None
        case "word2vec":
            lines = (folder / "vectors.txt").read_text().split("\n")
            assert lines[0] == f"{kind['num_rows']} {kind['dimension']}"
            assert lines.pop() == ""
            rows = [line.split(" ") for line in lines[1:]]
            values = np.array([row[1:] for row in rows], np.float32).reshape(-1, kind["dimension"])
            yield [unquote(row[0]) for row in rows], values, None


def _columns(table: pa.Table, kind: dict[str, Any]) -> tuple[list[str], np.ndarray, Any]:
    ids = table["id"].to_pylist()
    if kind["precision"] == "pq":
        codes = table["code"].to_pylist()
        codes = [np.frombuffer(each, np.uint8) if isinstance(each, bytes) else each for each in codes]
        values = np.array(codes, np.uint8).reshape(-1, kind["num_codes"])
        return ids, values, table["scale"].to_numpy() if "scale" in table.column_names else None
    flat = table["embedding"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return ids, flat.reshape(-1, kind["dimension"]), None
