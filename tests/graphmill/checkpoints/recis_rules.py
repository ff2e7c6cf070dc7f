"""A reader of RecIS checkpoints by the rules of RecIS' own reader, the strict ones of all its versions; and
checkpoints of any shards.

RecIS has a vector with one place per file of `index`, and looks a file up by its number. It finds the blocks
of a tensor by the beginning of their names: in 1.0.0 a longer name counts as well, since 1.2 only that name.
Tables are read shard by shard, with the ids that a rank owns by `uint64(id) % 65536`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from graphmill.checkpoints.recis import HashTable, Loader, Saver, slice_of

CARET, SLOTS = "^", 65536
Tables = Mapping[str, tuple[np.ndarray, dict[str, Any]]]
"""Ids and slots by name."""


def rows_of(ids: np.ndarray, dimension: int = 2) -> np.ndarray:
    """Rows that tell which id they belong to."""
    return (ids[:, None] % 10007 + np.arange(dimension) / 16).astype(np.float32)


def table_of(ids: Any, rows: Any = None) -> Tables:
    """A table `t` without sums; default rows that tell their ids."""
    ids = np.asarray(ids)
    return {"t": (ids, {"embedding": rows_of(ids) if rows is None else rows})}


def saver(path: Path, tables: Tables, shard: int, shard_num: int, parallel: int = 1, **dense: Any) -> Saver:
    """The saver of a shard, which has the ids that it owns."""
    content = {}
    for name, (ids, slots) in tables.items():
        owned = slice_of(shard, shard_num).owns(ids)
        own = {slot: rows[owned] for slot, rows in slots.items()}
        content[name] = HashTable(ids[owned], own, shard, shard_num)
    return Saver(shard, shard_num, parallel, str(path), content, dense)


def save_shards(path: Path, tables: Tables, shard_num: int = 1, **dense: Any) -> None:
    """Save tables, each id by the shard that owns it."""
    for shard in range(shard_num):
        saver(path, tables, shard, shard_num, **dense).save()


def load(path: Path, dimension: int = 2) -> HashTable:
    """All rows of the table `t`."""
    table = HashTable.empty({"embedding": ("float32", dimension)})
    Loader(str(path), {"t": table}).load()
    return table


class RecisReader:
    """Tensors by name: `fc.weight`, or `table@slot` over all shards in the order of their slices."""

    def __init__(self, path: Path) -> None:
        index = json.loads((path / "index").read_text())
        renamed = json.loads((path / "tensorkey.json").read_text())
        self._files: list[dict[str, torch.Tensor] | None] = [None] * len(index["file_index"])
        for name, number in index["file_index"].items():
            found = load_file(path / name)
            self._files[number] = {renamed.get(key, key): tensor for key, tensor in found.items()}
        self._file_of = {renamed.get(key, key): number for key, number in index["block_index"].items()}

    def names(self) -> list[str]:
        # RecIS refuses another number of carets
        return sorted({name for name, _ in (block.split(CARET) for block in self._file_of)})

    def read(self, name: str, prefix: str = "") -> torch.Tensor:
        """RecIS 1.0.0 looks for the name alone, since 1.2 with the prefix `^` of slices."""
        slices = sorted(block.split(CARET)[1] for block in self._file_of if block.startswith(name + prefix))
        blocks = [f"{name}{CARET}{each}" for each in slices]
        pieces = [self._files[self._file_of[block]][block] for block in blocks]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def table(self, table: str, slot: str = "embedding") -> dict[int, Any]:
        """Rows of a slot by id."""
        ids, rows = self.read(f"{table}@id").tolist(), self.read(f"{table}@{slot}", CARET)
        assert len(ids) == len(rows) == len(set(ids))
        return dict(zip(ids, rows, strict=True))

    def owned(self, table: str, rank: int, num_ranks: int) -> set[int]:
        """The ids of a table that a rank loads."""
        share, rest = divmod(SLOTS, num_ranks)
        begin = rank * share + min(rank, rest)
        end = begin + share + (rank < rest)
        return {each for each in self.table(table) if begin <= each % SLOTS < end}
