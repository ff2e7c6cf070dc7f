"""Small trees of maps, embeddings and predictions in GraphStorm's formats, with their content."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from tests.commands import Command as Cli
from tests.contents import contents

__all__ = ["Cli", "save"]

Refused = Callable[..., None]
Rows = dict[str, list[float]]  # vectors by raw id


def save(path: Path, rows: Any) -> None:
    """One tensor, by torch."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(torch.as_tensor(rows), path)


def raw_id(entity_type: str, nid: int) -> str:
    return f"{entity_type}:{nid:03d}-ß"


class Tree:
    """Maps in `raw_id_mappings`, embeddings in `emb`, predictions in `pred`, under one folder."""

    def __init__(self, root: Path, rng: np.random.Generator) -> None:
        self.root, self.rng = root, rng
        self.maps, self.emb, self.pred = root / "raw_id_mappings", root / "emb", root / "pred"

    def write_map(self, entity_type: str, num_ids: int, num_files: int = 2) -> None:
        """A shuffled map over several files."""
        new = self.rng.permutation(num_ids)
        for number, part in enumerate(np.array_split(new, num_files)):
            orig = [raw_id(entity_type, nid) for nid in part]
            self.write_map_file(entity_type, number, orig, part.tolist())

    def write_map_file(self, entity_type: str, number: int, orig: Sequence[Any], new: Sequence[int]) -> Path:
        path = self.maps / entity_type / f"part-{number:05d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"orig": orig, "new": pa.array(new, pa.int64())}), path, row_group_size=3)
        return path

    def write_embeddings(self, entity_type: str, rows_of_ranks: Sequence[int], *, folder: str = "") -> Rows:
        """Random vectors for shuffled ids; what each raw id should get."""
        nids = self.rng.permutation(sum(rows_of_ranks))
        expected: Rows = {}
        start = 0
        for rank, num_rows in enumerate(rows_of_ranks):
            vectors = self.rng.standard_normal((num_rows, 4), np.float32)
            part = nids[start : start + num_rows]
            save(self.emb / folder / entity_type / f"embed-{rank:05d}.pt", vectors)
            save(self.emb / folder / entity_type / f"embed_nids-{rank:05d}.pt", part)
            expected |= {
                raw_id(entity_type, nid): row for nid, row in zip(part, vectors.tolist(), strict=True)
            }
            start += num_rows
        return expected

    def write_emb_info(self, types: Any, world_size: int, **more: Any) -> None:
        self.emb.mkdir(parents=True, exist_ok=True)
        content = {"format": "pytorch", "emb_name": types, "world_size": world_size, **more}
        (self.emb / "emb_info.json").write_text(json.dumps(content))

    def write_predictions(
        self, place: str, rows: Any = 4, *, nids: Any = None, types: Sequence[str] | None = None
    ) -> None:
        """Predictions of nodes below `pred`, or so many halves; with `types`, the JSON that lists them."""
        rows = torch.arange(rows) * 0.5 if isinstance(rows, int) else rows
        save(self.pred / place / "predict-00000.pt", rows)
        save(self.pred / place / "predict_nids-00000.pt", torch.arange(len(rows)) if nids is None else nids)
        if types is not None:
            listed = (self.pred / place).parent / "result_info.json"
            listed.write_text(json.dumps({"world_size": 1, "ntypes": types}))

    def write_users(
        self, rows_of_ranks: Sequence[int], num_ids: int | None = None, num_files: int = 2
    ) -> Rows:
        """A map of users, by default those of the embeddings, the embeddings, and their JSON."""
        self.write_map("user", num_ids or sum(rows_of_ranks), num_files)
        self.write_emb_info(["user"], len(rows_of_ranks))
        return self.write_embeddings("user", rows_of_ranks)

    def embeddings(self) -> Rows:
        """Read the tables of embeddings."""
        found: Rows = {}
        for path in sorted(self.emb.glob("*/embed-*.parquet")):  # hidden folders have one level more
            table = pq.read_table(path).to_pydict()
            for key, vector in zip(table["nid"], table["emb"], strict=True):
                assert key not in found
                found[key] = vector
        return found

    def arguments(self, *more: Any) -> list[Any]:
        """Flags that remap the embeddings."""
        return ["--node-id-mapping", self.maps, "--node-emb-dir", self.emb, *more]

    def prediction_arguments(self, *more: Any) -> list[Any]:
        """Flags that remap the predictions."""
        return ["--node-id-mapping", self.maps, "--prediction-dir", self.pred, *more]

    def inputs(self) -> dict[str, bytes]:
        """Every .pt file with its bytes."""
        return {name: content for name, content in contents(self.root).items() if name.endswith(".pt")}

    def tables(self) -> list[str]:
        """Every table, hidden and unfinished ones included."""
        names = contents(self.root)
        return sorted(
            n for n in names if not n.startswith("raw_id_mappings") and n.endswith((".parquet", ".csv"))
        )
