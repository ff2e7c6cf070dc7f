"""Hash tables for saving and loading: ids, and slots of rows that belong to the ids.

A slot is a numpy array, a torch tensor, or any object with a shape, a dtype and slices of rows. An HDF5
dataset, for example, is never whole in memory.
"""

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphmill.checkpoints.recis.layout import ID_SLOT, Numbers, Slice, slice_of
from graphmill.checkpoints.recis.safetensors import StoredRows, dtype_of
from graphmill.errors import FormatError


class HashTable:
    """One shard of a table: row k of every slot belongs to id k."""

    def __init__(
        self, ids: Any, slots: Mapping[str, StoredRows], shard_index: int = 0, shard_num: int = 1
    ) -> None:
        """Raises FormatError where a slot's length is not that of the ids, or its dtype cannot be saved."""
        self.slice: Slice = slice_of(shard_index, shard_num)
        self._pieces: dict[str, list[Any]] = {name: [rows] for name, rows in slots.items()}
        self._ids = [ids]
        self._lock = threading.Lock()
        if dtype_of(ids) != torch.int64 or len(ids.shape) != 1:
            raise FormatError(f"ids: expected int64 in one dimension, found {ids.dtype} {tuple(ids.shape)}")
        for name, rows in slots.items():
            dtype_of(rows)
            if not name or name == ID_SLOT or "." in name or "@" in name:
                raise FormatError(f"slot {name!r}: expected a name without dot and @ that is not 'id'")
            if rows.shape[0] != len(ids):
                raise FormatError(f"slot {name!r}: expected {len(ids)} rows, found {rows.shape[0]}")

    @classmethod
    def empty(
        cls, slots: Mapping[str, tuple[Any, ...]], shard_index: int = 0, shard_num: int = 1
    ) -> "HashTable":
        """An empty table for loading; a slot is (dtype, *shape of a row), such as ("float32", 8)."""
        fresh = {
            name: torch.empty((0, *shape), dtype=dtype)
            if isinstance(dtype, torch.dtype)
            else np.empty((0, *shape), dtype)
            for name, (dtype, *shape) in slots.items()
        }
        return cls(np.empty(0, np.int64), fresh, shard_index, shard_num)

    @property
    def ids(self) -> Any:
        """int64 [rows]."""
        with self._lock:
            return _joined(self._ids)

    @property
    def slots(self) -> dict[str, Any]:
        """[rows, ...] each."""
        with self._lock:
            return {name: _joined(pieces) for name, pieces in self._pieces.items()}

    def __len__(self) -> int:
        return sum(map(len, self._ids))

    def insert(self, ids: Numbers, rows: Mapping[str, Tensor]) -> None:
        """Add loaded rows. Safe to call from several threads."""
        added = {name: _like(pieces[0], rows[name], name) for name, pieces in self._pieces.items()}
        with self._lock:
            self._ids.append(ids)
            for name, piece in added.items():
                self._pieces[name].append(piece)


def _like(first: Any, rows: Tensor, name: str) -> Any:
    if tuple(rows.shape[1:]) != tuple(first.shape[1:]):
        raise FormatError(
            f"slot {name!r}: expected rows of shape {tuple(first.shape[1:])}, found {tuple(rows.shape[1:])}"
        )
    converted = rows.to(dtype_of(first))
    return converted if isinstance(first, Tensor) else converted.numpy()


def _joined(pieces: list[Any]) -> Any:
    if len(pieces) > 1:
        filled = [piece for piece in pieces if len(piece)] or pieces[:1]
        pieces[:] = [torch.cat(filled) if isinstance(filled[0], Tensor) else np.concatenate(filled)]
    return pieces[0]
