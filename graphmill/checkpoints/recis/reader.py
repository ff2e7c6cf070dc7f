"""Reading of a RecIS checkpoint: tensors by name, or a shard's tables from any number of saved shards."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphmill import storage
from graphmill.checkpoints.recis.layout import (
    ID_SLOT,
    INDEX,
    Slice,
    Stored,
    UnknownTensorError,
    read_index,
    tensor_name,
)
from graphmill.checkpoints.recis.safetensors import Entry, SafetensorsFile, dtype_of
from graphmill.checkpoints.recis.saver import HashTable
from graphmill.errors import FormatError

_BATCH_BYTES = 4 << 20

LoadInfo = dict[str, str]


class CheckpointReader:
    """Tensors by name: the name of a dense tensor, or `table@slot` for all shards of a table.

    An unknown name is an `UnknownTensorError`, which is a KeyError; damage is a `FormatError`.
    """

    def __init__(self, path: str) -> None:
        """Raises FormatError or NotFoundError where there is no checkpoint, or its index is damaged."""
        self.path = path
        self._blocks = read_index(path).blocks(storage.join(path, INDEX))
        self._entries: dict[str, dict[str, Entry]] = {}

    def tensor_names(self) -> list[str]:
        """Names of all tensors, sorted."""
        return sorted(self._blocks)

    def table_slots(self) -> dict[str, list[str]]:
        """The slots of each table, without its ids."""
        slots: dict[str, list[str]] = {}
        for name in self.tensor_names():
            if self._blocks[name][0].slots is not None:
                table, _, slot = name.rpartition("@")
                slots.setdefault(table, []).extend([slot] if slot != ID_SLOT else [])
        return slots

    def dense_names(self) -> list[str]:
        """Names of the dense tensors."""
        return [name for name in self.tensor_names() if self._blocks[name][0].slots is None]

    def blocks(self, name: str) -> list[Stored]:
        """The blocks that make up a tensor."""
        if name not in self._blocks:
            raise UnknownTensorError(
                f"{self.path}: no tensor {name!r}; it has {', '.join(self.tensor_names()[:20]) or 'none'}"
            )
        return self._blocks[name]

    def entry(self, block: Stored) -> Entry:
        """dtype, shape and place of a block, whose rows are those of ids in a table."""
        if block.file not in self._entries:
            with self.open_file(block) as file:
                self._entries[block.file] = file.entries
        if block.key not in self._entries[block.file]:
            raise FormatError(
                f"{storage.join(self.path, block.file)}: expected {block.key!r}, found no such tensor"
            )
        entry = self._entries[block.file][block.key]
        is_ids = block.name.endswith(f"@{ID_SLOT}")
        fits = (entry.dtype, len(entry.shape)) == (torch.int64, 1) if is_ids else bool(entry.shape)
        if block.slots is not None and not fits:
            raise FormatError(
                f"{storage.join(self.path, block.file)}: {block.key!r}: expected rows, ids as int64 [rows], "
                f"found {entry.dtype} {entry.shape}"
            )
        return entry

    def rows_of(self, ids: Sequence[Stored], name: str) -> list[Stored]:
        """The blocks of a slot, one for each of these blocks of ids, with one row for each id."""
        blocks = {block.slots: block for block in self.blocks(name)}
        for block in ids:
            rows = blocks.get(block.slots)
            if rows is None or self.entry(rows).shape[:1] != self.entry(block).shape:
                raise FormatError(f"{self.path}: {name!r} lacks the rows of the ids of slice {block.slots}")
        return [blocks[block.slots] for block in ids]

    def owned_rows(
        self, part: Sequence[Stored], owned: Slice, batch_rows: int
    ) -> Iterator[tuple[int, Tensor, Sequence[Tensor]]]:
        """Read a block of ids and the blocks of its rows together, at most `batch_rows` at a time.

        Yields the number of the first row, a mask of the rows whose ids a shard owns, and the rows of each
        block. What has no such rows is left out.
        """
        if not (part[0].slots or owned).meets(owned):
            return
        num_rows = self.entry(part[0]).shape[0]
        with ExitStack() as stack:
            files = [stack.enter_context(self.open_file(block)) for block in part]
            for start in range(0, num_rows, batch_rows):
                stop = min(start + batch_rows, num_rows)
                ids = files[0].read(part[0].key, start, stop)
                is_owned = torch.from_numpy(owned.owns(ids.numpy()))
                if is_owned.any():
                    beside = zip(files[1:], part[1:], strict=True)
                    yield start, is_owned, [ids, *(file.read(b.key, start, stop) for file, b in beside)]

    @contextmanager
    def open_file(self, block: Stored) -> Iterator[SafetensorsFile]:
        """Open the file of a block."""
        uri = storage.join(self.path, block.file)
        with storage.open_input(uri) as stream:
            yield SafetensorsFile(stream, uri)

    def tensor_shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor; rows of all shards together."""
        return self._shape_and_dtype(name)[0]

    def tensor_dtype(self, name: str) -> torch.dtype:
        """dtype of a tensor."""
        return self._shape_and_dtype(name)[1]

    def read_tensor(self, name: str) -> Tensor:
        """Read a whole tensor, the rows of its shards one after the other."""
        self._shape_and_dtype(name)
        pieces = []
        for block in self.blocks(name):
            with self.open_file(block) as file:
                pieces.append(file.read(block.key))
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def _shape_and_dtype(self, name: str) -> tuple[tuple[int, ...], torch.dtype]:
        entries = [self.entry(block) for block in self.blocks(name)]
        first = entries[0]
        if any((entry.shape[1:], entry.dtype) != (first.shape[1:], first.dtype) for entry in entries):
            raise FormatError(f"{self.path}: blocks of {name!r} differ in dtype or in the shape of a row")
        if len(entries) == 1:
            return first.shape, first.dtype
        return (sum(entry.shape[0] for entry in entries), *first.shape[1:]), first.dtype


class Loader:
    """Fills tables and dense tensors from a checkpoint."""

    def __init__(
        self,
        checkpoint_path: str,
        hashtables: Mapping[str, HashTable] | None = None,
        tensors: Mapping[str, Any] | None = None,
        parallel: int = 16,
        filter_func: Callable[[LoadInfo], LoadInfo] = lambda load_info: load_info,
        *,
        allow_missing: bool = False,
    ) -> None:
        """Prepare to load.

        Args:
            checkpoint_path: the folder.
            hashtables: tables by name; each receives the ids that its shard owns.
            tensors: dense tensors by name, numpy or torch, filled in place.
            parallel: reader threads.
            filter_func: gets the names that would be filled, each with the name that it is read from, and
                returns those to fill; a table's slots are `table@slot`, to be filled all or none.
            allow_missing: skip names that the checkpoint does not have.

        Raises:
            NotFoundError: there is no checkpoint.
        """
        self._reader, self._path = CheckpointReader(checkpoint_path), checkpoint_path
        self._hashtables, self._tensors = dict(hashtables or {}), dict(tensors or {})
        self._parallel, self._filter_func, self._allow_missing = max(1, parallel), filter_func, allow_missing

    def load(self) -> None:
        """Fill the tables and tensors.

        Raises:
            UnknownTensorError: names are missing in the checkpoint, and that is not allowed; a KeyError.
            FormatError: a tensor has another shape, a table lacks a slice or has an id twice, a file is
                damaged, or the filter leaves out some of a table's slots.
        """
        slot_names = {
            name: [tensor_name(name, slot) for slot in (ID_SLOT, *table.slots)]
            for name, table in self._hashtables.items()
        }
        wanted = [*self._tensors, *itertools.chain(*slot_names.values())]
        load_info = self._filter_func({name: name for name in wanted})
        for name, names in slot_names.items():
            left_out = [slot_name for slot_name in names if slot_name not in load_info]
            if 0 < len(left_out) < len(names):
                raise FormatError(
                    f"table {name!r}: filter_func left out {', '.join(left_out)}: rows are loaded with all "
                    "slots of their table, or not at all; give a table without that slot"
                )
        present = self._present(load_info)
        with ThreadPoolExecutor(self._parallel, "recis-reader") as pool:
            dense = present.keys() & self._tensors.keys()
            reads = [pool.submit(self._load_dense, name, present[name]) for name in dense]
            for name, names in slot_names.items():
                if present.keys() >= set(names):
                    slots = [slot_name.rpartition("@")[2] for slot_name in names[1:]]
                    parts = self._parts(name, [present[slot_name] for slot_name in names])
                    table = self._hashtables[name]
                    reads += [pool.submit(self._load_part, table, slots, part) for part in parts]
            for read in reads:
                read.result()
        for name, table in self._hashtables.items():
            ids = np.sort(np.asarray(table.ids))
            again = ids[1:][ids[1:] == ids[:-1]]
            if len(again):
                raise FormatError(
                    f"{self._path}: table {name!r}: expected each id once, found {again[0]} again"
                )

    def _present(self, load_info: LoadInfo) -> LoadInfo:
        """The entries whose source the checkpoint has."""
        known = self._reader.tensor_names()
        missing = sorted(name for name, source in load_info.items() if source not in known)
        if missing and not self._allow_missing:
            raise UnknownTensorError(
                f"{self._path}: no tensors {', '.join(missing)}; it has {', '.join(known[:20])}"
            )
        return {name: source for name, source in load_info.items() if name not in missing}

    def _load_dense(self, name: str, source: str) -> None:
        target, value = self._tensors[name], self._reader.read_tensor(source)
        if tuple(target.shape) != tuple(value.shape):
            raise FormatError(
                f"{self._path}: {source!r} has shape {tuple(value.shape)}, expected {tuple(target.shape)}"
            )
        if isinstance(target, Tensor):
            with torch.no_grad():
                target.copy_(value)
        else:
            target[...] = value.to(dtype_of(target)).numpy()

    def _parts(self, table: str, sources: Sequence[str]) -> list[tuple[Stored, ...]]:
        """The blocks of each stored slice that intersects the table's own: ids first, as in `sources`."""
        own = self._hashtables[table].slice
        stored = self._reader.blocks(sources[0])
        ids = [block for block in stored if block.slots and block.slots.meets(own)]
        return list(zip(*(self._reader.rows_of(ids, source) for source in sources), strict=True))

    def _load_part(self, table: HashTable, slots: Sequence[str], part: Sequence[Stored]) -> None:
        entries = [self._reader.entry(block) for block in part]
        widest = max((entry.stop - entry.start) // max(entry.shape[0], 1) for entry in entries)
        batch_rows = max(1, _BATCH_BYTES // max(widest, 1))
        for _, is_owned, tensors in self._reader.owned_rows(part, table.slice, batch_rows):
            ids, *rows = (tensor[is_owned] for tensor in tensors)
            table.insert(ids.numpy(), dict(zip(slots, rows, strict=True)))
