"""RecIS' checkpoints with other shards: all tables, slots and dense tensors as they are, whatever their ids.

The model's `model.pt` and `extra.pt`, which RecIS saves beside the tables, are copied unread.

Shapes: N rows of a stored block.
"""

import bisect
import itertools
import re
import shutil
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from graphmill import storage
from graphmill.checkpoints.recis_names import parameter_names, parse_names, sum_name
from graphmill.checkpoints.recis_write import NUM_WRITERS
from graphmill.errors import FormatError
from graphmill.formats.recis import CheckpointReader, HashTable, Saver, Slice, slice_of
from graphmill.formats.recis.layout import ID_SLOT, INDEX, MULTI_SHARD, TENSOR_KEYS, Stored, tensor_name

_BATCH_ROWS = 1 << 16
_WRITTEN = rf"{INDEX}|{TENSOR_KEYS}|{MULTI_SHARD}|[^/]+\.safetensors"
_OF_RANKS = r"io_state_.*"  # positions in the data, one file for each rank that trained


def reshard(reader: CheckpointReader, target_uri: str, shard_num: int) -> list[str]:
    """Write the checkpoint in `shard_num` shards; return the files that are not kept.

    Raises:
        FormatError: a table's blocks do not fit together, or hold an id of another slice.
    """
    names = _new_names(reader)
    for shard in range(shard_num):
        with ExitStack() as stack:
            tables = {
                name: _owned_table(reader, name, slots, shard, shard_num, stack)
                for name, slots in reader.table_slots().items()
            }
            dense = {names[name]: reader.read_tensor(name) for name in names} if shard == 0 else {}
            Saver(shard, shard_num, NUM_WRITERS, target_uri, tables, dense).save()
    written = CheckpointReader(target_uri)
    for name in reader.tensor_names():
        found, expected = written.tensor_shape(names.get(name, name)), reader.tensor_shape(name)
        if found != expected:
            raise FormatError(f"{reader.path}: {name!r}: expected {expected}, found {found} in their slices")
    return _copy_others(reader.path, target_uri)


def _new_names(reader: CheckpointReader) -> dict[str, str]:
    """Names of the dense tensors, new ones for those of earlier versions of ours, by their old names."""
    parameters, sums = parse_names(reader.dense_names())
    names = parameter_names(parameters)
    renamed = {old: names[key] for key, old in parameters.items()}
    renamed |= {old: sum_name(names.get(key, key)) for key, old in sums.items()}
    return {name: renamed.get(name, name) for name in reader.dense_names()}


def _owned_table(
    reader: CheckpointReader, table: str, slots: list[str], shard: int, shard_num: int, stack: ExitStack
) -> HashTable:
    owned = slice_of(shard, shard_num)
    counts = _count_owned(reader, table, owned)
    ids = _OwnedRows(reader, table, ID_SLOT, owned, counts, stack)
    rows = {slot: _OwnedRows(reader, table, slot, owned, counts, stack) for slot in slots}
    return HashTable(ids, rows, shard, shard_num)


def _count_owned(reader: CheckpointReader, table: str, owned: Slice) -> list[tuple[int, int, int]]:
    """(number of the block, first row, owned ids) of each batch of rows that has such ids."""
    counts = []
    for number, block in enumerate(reader.blocks(tensor_name(table, ID_SLOT))):
        slots = block.slots or Slice(0, 0)
        if slots.end <= owned.begin or slots.begin >= owned.end:
            continue
        with reader.open_file(block) as file:
            num_rows = reader.entry(block).shape[0]
            for start in range(0, num_rows, _BATCH_ROWS):
                ids = file.read(block.key, start, min(start + _BATCH_ROWS, num_rows)).numpy()
                if count := int(owned.owns(ids).sum()):
                    counts.append((number, start, count))
    return counts


class _OwnedRows:
    """The rows [n, ...] of one slot whose ids a shard owns, in stored order; a batch is in memory."""

    def __init__(
        self,
        reader: CheckpointReader,
        table: str,
        slot: str,
        owned: Slice,
        counts: list[tuple[int, int, int]],
        stack: ExitStack,
    ) -> None:
        name = tensor_name(table, slot)
        self._reader, self._owned, self._counts, self._stack = reader, owned, counts, stack
        self._ids, self._rows = reader.blocks(tensor_name(table, ID_SLOT)), reader.blocks(name)
        for ids, rows in itertools.zip_longest(self._ids, self._rows):
            if ids is None or rows is None or _num_rows(reader, ids) != _num_rows(reader, rows):
                raise FormatError(f"{reader.path}: {name!r}: its blocks have not one row for each id")
        self._ends = list(itertools.accumulate(count for _, _, count in counts))
        self.dtype = reader.tensor_dtype(name)
        self.shape = (self._ends[-1] if counts else 0, *reader.tensor_shape(name)[1:])
        self._files: dict[str, Any] = {}
        self._held: tuple[int, Tensor] = -1, torch.empty(0)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: slice) -> Tensor:
        start, stop, _ = rows.indices(len(self))
        pieces = [torch.empty((0, *self.shape[1:]), dtype=self.dtype)]
        while start < stop:
            batch = bisect.bisect_right(self._ends, start)
            first = self._ends[batch] - self._counts[batch][2]
            last = min(stop, self._ends[batch])
            pieces.append(self._batch(batch)[start - first : last - first])
            start = last
        return pieces[1] if len(pieces) == 2 else torch.cat(pieces)

    def _batch(self, batch: int) -> Tensor:
        if self._held[0] != batch:
            number, start, _ = self._counts[batch]
            ids = self._read(self._ids[number], start)
            owned = torch.from_numpy(self._owned.owns(ids.numpy()))
            self._held = batch, self._read(self._rows[number], start)[owned]
        return self._held[1]

    def _read(self, block: Stored, start: int) -> Tensor:
        if block.file not in self._files:
            self._files[block.file] = self._stack.enter_context(self._reader.open_file(block))
        stop = min(start + _BATCH_ROWS, _num_rows(self._reader, block)[1])
        found: Tensor = self._files[block.file].read(block.key, start, stop)
        return found


def _num_rows(reader: CheckpointReader, block: Stored) -> tuple[Slice | None, int]:
    """Slice and rows of a block."""
    return block.slots, reader.entry(block).shape[0]


def _copy_others(source_uri: str, target_uri: str) -> list[str]:
    lost = []
    for each in storage.list_dir(source_uri):
        name = storage.name(each.uri)
        if each.is_dir or re.fullmatch(_OF_RANKS, name):
            lost.append(name)
        elif not re.fullmatch(_WRITTEN, name):
            with (
                storage.open_input(each.uri) as source,
                storage.atomic_output(storage.join(target_uri, name)) as target,
            ):
                shutil.copyfileobj(source, target, 4 << 20)
    return sorted(lost)
