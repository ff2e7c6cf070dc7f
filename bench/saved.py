"""Synthetic output of GraphStorm: embeddings, edge predictions and id maps of any size, always the same.

{root}/raw_id_mappings/user/part-*.parquet      a shuffled map in four files, like those of GConstruct
{root}/emb/ or {root}/pred/                     two ranks, like those of its inference
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from bench.synthetic import Edges
from graphmill.checkpoints.graphstorm import saved_embeddings, saved_ranks
from graphmill.checkpoints.graphstorm.saved_embeddings import EmbInfo

TYPE = "user"
EDGE_TYPE = (TYPE, "bought", TYPE)
NUM_RANKS = 2
NUM_MAP_FILES = 4
DIMENSION = 128


@dataclass(frozen=True)
class Saved:
    """One job: rows of embeddings or edge predictions, and a map of `num_ids`."""

    root: Path
    num_rows: int
    num_ids: int
    is_edges: bool = False

    @property
    def maps(self) -> Path:
        return self.root / "raw_id_mappings"

    @property
    def folder(self) -> Path:
        """The folder to remap."""
        return self.root / ("pred" if self.is_edges else "emb")

    @property
    def sources(self) -> list[Path]:
        """All files to read."""
        return sorted([*self.maps.rglob("*.parquet"), *self.folder.rglob("*.pt")])

    def write(self) -> "Saved":
        """Write all files; memory: the map and one rank."""
        rng = np.random.default_rng(self.num_ids)
        new = rng.permutation(self.num_ids)
        ids = Edges.of(self.num_ids).ids(TYPE, np.arange(self.num_ids))
        for number, part in enumerate(np.array_split(new, NUM_MAP_FILES)):
            path = self.maps / TYPE / f"part-{number:05d}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.table({"orig": ids.take(pa.array(part)), "new": part}), path)
        del ids
        if self.is_edges:
            self._write_predictions(rng)
        else:
            self._write_embeddings(rng, new)
        return self

    def _write_embeddings(self, rng: np.random.Generator, new: np.ndarray) -> None:
        root = str(self.folder)
        for rank, nids in enumerate(np.array_split(rng.permutation(new)[: self.num_rows], NUM_RANKS)):
            vectors = rng.standard_normal((len(nids), DIMENSION), np.float32)
            saved_embeddings.write_rank(root, TYPE, rank, nids, vectors)
        saved_embeddings.write_emb_info(root, EmbInfo((TYPE,), NUM_RANKS, {TYPE: DIMENSION}))

    def _write_predictions(self, rng: np.random.Generator) -> None:
        root = str(self.folder)
        folder = saved_ranks.edge_folder(root, EDGE_TYPE)
        for rank in range(NUM_RANKS):
            num_rows = self.num_rows // NUM_RANKS
            nids = {stem: rng.integers(0, self.num_ids, num_rows) for stem in saved_ranks.EDGE_STEMS}
            values = rng.random(num_rows, dtype=np.float32)
            for stem, rows in {saved_ranks.PREDICT: values, **nids}.items():
                path = Path(saved_ranks.file_uri(folder, stem, rank))
                path.parent.mkdir(parents=True, exist_ok=True)
                torch.save(torch.from_numpy(rows), path)
        info = {"format": "pytorch", "world_size": NUM_RANKS, "etypes": [EDGE_TYPE]}
        Path(saved_ranks.result_info_uri(root)).write_text(json.dumps(info))
