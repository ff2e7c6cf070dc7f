"""Hash tables, and saving of one shard or all shards in RecIS' layout.

Every shard writes its files of tensors, and then a note with their content. The shard that finds the notes
of all shards numbers the files from 0 on without gaps, gives them their names, and writes `index` last.
RecIS' reader has a vector with one place per file. A folder holds one checkpoint: a second save is refused.
Empty the folder after a killed save: its notes would be joined with the notes of the next save.

A slot is a numpy array, a torch tensor, or any object with a shape, a dtype and slices of rows. An HDF5
dataset, for example, is never whole in memory.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphmill import storage
from graphmill.checkpoints.recis import layout, safetensors
from graphmill.checkpoints.recis.layout import EMBEDDING_SLOT, ID_SLOT, Index, Numbers, Slice, slice_of
from graphmill.checkpoints.recis.safetensors import BatchedRows, NewTensor, StoredRows, dtype_of
from graphmill.errors import FormatError, NotFoundError


class HashTable:
    """One shard of a table: row k of every slot belongs to id k."""

    def __init__(
        self,
        ids: Any,
        slots: Mapping[str, StoredRows | BatchedRows],
        shard_index: int = 0,
        shard_num: int = 1,
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
            if rows.shape[0] != ids.shape[0]:
                raise FormatError(f"slot {name!r}: expected {ids.shape[0]} rows, found {rows.shape[0]}")

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


@dataclass(frozen=True)
class WriteBlock(NewTensor):
    """One tensor of a shard, for writing; readers ask for it by `name`."""

    name: str
    slots: Slice | None

    def batches(self) -> Iterator[Any]:
        """Its rows, a few megabytes at a time; ids are checked."""
        for batch in super().batches():
            if self.slots is not None and self.name.endswith(f"@{ID_SLOT}"):
                foreign = np.asarray(batch)[~self.slots.owns(batch)]
                if len(foreign):
                    raise FormatError(
                        f"{self.key}: id {foreign[0]} has hash slot {layout.hash_slot(foreign[:1])[0]}, "
                        f"which the shard's slice {self.slots} does not have: another shard owns it"
                    )
            yield batch


Blocks = list[WriteBlock]


class Saver:
    """Saves one shard of a checkpoint with several writer threads."""

    def __init__(
        self,
        shard_index: int = 0,
        shard_num: int = 1,
        parallel: int = 8,
        path: str = ".",
        hashtables: Mapping[str, HashTable] | None = None,
        tensors: Mapping[str, Any] | None = None,
        filter_func: Callable[[Blocks], Blocks] = lambda blocks: blocks,
    ) -> None:
        """Prepare to save.

        Args:
            shard_index: this shard's number, from 0.
            shard_num: number of shards that save into the folder.
            parallel: writer threads; each thread writes its own file.
            path: the folder, which must not hold a checkpoint.
            hashtables: tables by name, of ids that this shard owns.
            tensors: dense tensors by name, numpy or torch; shard 0 alone writes them.
            filter_func: gets the blocks that would be written, and returns those to write.

        Raises:
            FormatError: there is no such shard, or a table is of another one.
        """
        if parallel < 1:
            raise FormatError(f"parallel: expected 1 or more, found {parallel}")
        self._slice = layout.slice_of(shard_index, shard_num)
        self._shard_index, self._shard_num = shard_index, shard_num
        self._parallel, self._path = parallel, path
        self._hashtables, self._tensors = dict(hashtables or {}), dict(tensors or {})
        self._filter_func = filter_func
        for name, table in self._hashtables.items():
            if table.slice != self._slice:
                raise FormatError(f"table {name!r} is of the slice {table.slice}, the shard of {self._slice}")

    def save(self) -> None:
        """Write the shard; the last shard completes the checkpoint.

        Raises:
            FormatError: the folder holds a checkpoint already, or a table has an id of another shard.
        """
        if storage.exists(storage.join(self._path, layout.INDEX)):
            raise FormatError(f"{self._path}: holds a checkpoint already; save into a folder of its own")
        note_uri = self._note_uri(self._shard_index)
        storage.delete(note_uri)
        by_writer = _spread(self._filter_func(self._blocks()), self._parallel)
        with ThreadPoolExecutor(self._parallel, "recis-writer") as pool:
            uris = [storage.join(self._path, self._unnumbered(writer)) for writer in by_writer]
            list(pool.map(safetensors.write, uris, by_writer.values()))
        layout.write_note(note_uri, self._index(by_writer))
        self._commit_if_complete()

    def _blocks(self) -> Blocks:
        dense = self._tensors if self._shard_index == 0 else {}
        blocks = [WriteBlock(name + layout.DENSE_END, tensor, name, None) for name, tensor in dense.items()]
        part = f"part_{self._shard_index}_{self._shard_num}"
        for table, content in self._hashtables.items():
            for slot, rows in {ID_SLOT: content.ids, **content.slots}.items():
                name = layout.tensor_name(table, slot)
                blocks.append(WriteBlock(f"{table}.{slot}/{part}", rows, name, self._slice))
        return blocks

    def _index(self, by_writer: Mapping[int, Blocks]) -> Index:
        """The content of the shard's note; its files are numbered within the shard."""
        written = Index()
        for number, (writer, blocks) in enumerate(sorted(by_writer.items())):
            written.file_index[self._unnumbered(writer)] = number
            for block in blocks:
                written.block_index[block.key] = number
                if block.slots is not None:
                    written.tensor_keys[block.key] = f"{block.name}^{block.slots}"
                if (entry := _multi_shard_entry(block)) is not None:
                    written.multi_shard[block.key] = entry
        return written

    def _commit_if_complete(self) -> None:
        notes = [self._note_uri(shard) for shard in range(self._shard_num)]
        try:
            written = [layout.read_note(note) for note in notes]
        except NotFoundError:
            return  # the last of the other shards will
        merged = Index()
        for part in written:
            merged.append(part)
        for before, after in merged.number_files().items():
            after_uri = storage.join(self._path, after)
            try:
                storage.move(storage.join(self._path, before), after_uri)
            except NotFoundError:  # another shard does it now, or did it before it was killed
                if not storage.exists(after_uri):
                    raise
        layout.write_index(self._path, merged)
        for note in notes:
            storage.delete(note)

    def _unnumbered(self, writer: int) -> str:
        return f"shard-{self._shard_index:06d}-of-{self._shard_num:06d}-{writer:06d}.safetensors"

    def _note_uri(self, shard: int) -> str:
        return storage.join(self._path, f"shard-{shard:06d}-of-{self._shard_num:06d}.json")


def _spread(blocks: Blocks, num_writers: int) -> dict[int, Blocks]:
    """Assign blocks, the largest first, each to the writer with the fewest bytes; omits idle writers."""
    loads = [0] * num_writers
    spread: dict[int, Blocks] = {}
    for block in sorted(blocks, key=lambda block: (-block.num_bytes, block.key)):
        writer = loads.index(min(loads))
        loads[writer] += block.num_bytes + 1
        spread.setdefault(writer, []).append(block)
    return spread


def _multi_shard_entry(block: WriteBlock) -> dict[str, Any] | None:
    """A tensor's entry in multi_shard.json; None for ids and optimizer slots."""
    dtype = str(block.dtype).removeprefix("torch.")
    described = {"name": block.key, "dtype": dtype, "shape": list(block.shape)}
    if block.slots is None:
        return described | {"dense": True, "dimension": 0, "is_hashmap": False}
    table, _, slot = block.name.rpartition("@")
    if slot != EMBEDDING_SLOT:
        return None
    return described | {
        "dense": False,
        "dimension": block.shape[-1],
        "hashmap_key": f"{table}.{ID_SLOT}/{block.key.rpartition('/')[2]}",
        "hashmap_key_dtype": "int64",
        "hashmap_value": block.key,
        "is_hashmap": True,
    }
