"""A small finished run to remap: counts, raw ids and a checkpoint, written by the formats themselves."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from graphmill import config, storage
from graphmill.checkpoints import pbg
from graphmill.checkpoints.pbg import Iteration
from graphmill.config import Config
from graphmill.formats import entity_counts, entity_index
from graphmill.formats.entity_index import Manifest

DIMENSION = 4
COUNTS: Mapping[str, Sequence[int]] = {"user": (5, 0, 7), "item": (3,)}
ITERATION = Iteration(1, 0, 1, 0, "edges", 1, 0)


def configured(output: str, counts: Mapping[str, Sequence[int]] = COUNTS, **remap: object) -> Config:
    """The configuration of a run at `output`, with these settings of the section `remap`."""
    types = list(counts)
    return config.from_mapping(
        {
            "output": output,
            "entities": {name: {"num_partitions": len(each)} for name, each in counts.items()},
            "relations": [{"name": "likes", "lhs": types[0], "rhs": types[-1]}],
            "dimension": DIMENSION,
            "remap": remap,
        }
    )


def raw_id(entity_type: str, partition: int, row: int) -> str:
    return f"{entity_type}/{partition}/{row}-ß"


def vectors(entity_type: str, partition: int, count: int, version: int) -> np.ndarray:
    """Random rows [count, DIMENSION], others for every type, partition and version."""
    seed = [*entity_type.encode(), partition, version]
    return np.random.default_rng(seed).standard_normal((count, DIMENSION), np.float32)


def write_entities(
    output: str, counts: Mapping[str, Sequence[int]] = COUNTS, *, as_pbg: bool = False
) -> None:
    """Counts and raw ids: our entity index, or the JSON lists of PBG's importer."""
    entity_path = configured(output, counts).entity_path
    storage.delete(entity_path)
    for entity_type, each in counts.items():
        for partition, count in enumerate(each):
            ids = [raw_id(entity_type, partition, row) for row in range(count)]
            entity_counts.write_count(entity_path, entity_type, partition, count)
            if as_pbg:
                entity_counts.write_entity_names(entity_path, entity_type, partition, ids)
            else:
                with entity_index.new_part(entity_path, entity_type, partition) as writer:
                    for start in range(0, count, 3):
                        writer.append(pa.array(ids[start : start + 3]))
    if not as_pbg:
        num_partitions = {entity_type: len(each) for entity_type, each in counts.items()}
        entity_index.write_manifest(entity_path, Manifest("blake2b", 0, num_partitions))


def write_checkpoint(
    output: str,
    counts: Mapping[str, Sequence[int]] = COUNTS,
    *,
    version: int = 1,
    preserve_epoch: int | None = None,
    state: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """A committed version, its model with the parameters of `state`."""
    path = configured(output, counts).checkpoint_path
    for entity_type, each in counts.items():
        for partition, count in enumerate(each):
            rows = vectors(entity_type, partition, count, version)
            pbg.write_embeddings(path, entity_type, partition, version, rows, None, {}, ITERATION)
    pbg.write_model(path, version, state or {}, {}, {}, ITERATION)
    pbg.commit(path, version, preserve_epoch=preserve_epoch)


def flags(output: str) -> list[str]:
    """The flags that name the checkpoint and the raw ids, for a command without a configuration."""
    return ["--checkpoint-path", f"{output}/checkpoint", "--entity-path", f"{output}/entities"]


def expected_rows(
    counts: Mapping[str, Sequence[int]] = COUNTS, version: int = 1
) -> dict[tuple[str, str], list[float]]:
    """(type, raw id) -> vector of every entity."""
    return {
        (entity_type, raw_id(entity_type, partition, row)): vector.tolist()
        for entity_type, each in counts.items()
        for partition, count in enumerate(each)
        for row, vector in enumerate(vectors(entity_type, partition, count, version))
    }


def read_rows(embedding_path: str | Path) -> dict[tuple[str, str], list[float]]:
    """(type, raw id) -> vector of every row, by pyarrow alone; refuses an id that comes twice."""
    found: dict[tuple[str, str], list[float]] = {}
    for path in sorted(Path(embedding_path).rglob("part-*.parquet")):
        table = pq.read_table(path).to_pydict()
        for key, vector in zip(zip(table["type"], table["id"], strict=True), table["embedding"], strict=True):
            assert key not in found
            assert path.parent.name == key[0]
            found[key] = vector
    return found
