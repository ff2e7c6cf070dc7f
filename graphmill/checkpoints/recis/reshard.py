"""RecIS' checkpoints with other shards: all tables, slots and dense tensors as they are, whatever their ids.

The model's `model.pt` and `extra.pt`, which RecIS saves beside the tables, are copied unread.

Shapes: N rows of a stored block.
"""

import bisect
import itertools
import math
import re
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor

from graphmill import storage
from graphmill.checkpoints.finite import check_finite
from graphmill.checkpoints.recis import CheckpointReader, HashTable, Saver, Slice, slice_of
from graphmill.checkpoints.recis.layout import ID_SLOT, INDEX, MULTI_SHARD, TENSOR_KEYS, Stored, tensor_name
from graphmill.checkpoints.recis.write import NUM_WRITERS, parameter_names, parse_names, sum_name
from graphmill.errors import FormatError

_BATCH_BYTES = 1 << 20
_WRITTEN = rf"{INDEX}|{TENSOR_KEYS}|{MULTI_SHARD}|[^/]+\.safetensors"
_OF_RANKS = r"io_state_.*"  # positions in the data, one file for each rank that trained


def reshard(
    reader: CheckpointReader, target_uri: str, shard_num: int, *, allow_non_finite: bool
) -> list[str]:
    """Write the checkpoint in `shard_num` shards; return the files that are not kept."""
    names = _new_names(reader)
    for shard in range(shard_num):
        with ExitStack() as stack:
            owned = slice_of(shard, shard_num)
            tables = {}
            for table, slots in reader.table_slots().items():
                batches = _owned_batches(reader, table, slots, owned)
                ids, *rows = (
                    _OwnedRows(reader, table, slot, owned, batches, stack, not allow_non_finite)
                    for slot in (ID_SLOT, *slots)
                )
                tables[table] = HashTable(ids, dict(zip(slots, rows, strict=True)), shard, shard_num)
            dense = {names[name]: reader.read_tensor(name) for name in names} if shard == 0 else {}
            for name, tensor in dense.items() if not allow_non_finite else ():
                _check_finite(tensor, f"{reader.path}: {name!r}")
            Saver(shard, shard_num, NUM_WRITERS, target_uri, tables, dense).save()
    written = CheckpointReader(target_uri)
    for name in reader.tensor_names():
        shape, expected = written.tensor_shape(names.get(name, name)), reader.tensor_shape(name)
        if shape != expected:
            raise FormatError(f"{reader.path}: {name!r}: expected {expected}, found {shape} in their slices")
    return _copy_others(reader.path, target_uri)


def _new_names(reader: CheckpointReader) -> dict[str, str]:
    """Names of the dense tensors, new ones for those of earlier versions of ours, by their old names."""
    parameters, sums = parse_names(reader.dense_names())
    names = parameter_names(parameters)
    renamed = {old: names[key] for key, old in parameters.items()}
    renamed |= {old: sum_name(names.get(key, key)) for key, old in sums.items()}
    return {name: renamed.get(name, name) for name in reader.dense_names()}


class _Batch(NamedTuple):
    """Stored rows [start, stop) of a block, some of whose ids a shard owns."""

    block: int
    start: int
    stop: int
    num_owned: int


def _owned_batches(reader: CheckpointReader, table: str, slots: list[str], owned: Slice) -> list[_Batch]:
    names = [tensor_name(table, slot) for slot in (ID_SLOT, *slots)]
    widest = max(math.prod(reader.tensor_shape(n)[1:]) * reader.tensor_dtype(n).itemsize for n in names)
    batch_rows = max(1, _BATCH_BYTES // widest)
    batches = []
    for number, block in enumerate(reader.blocks(tensor_name(table, ID_SLOT))):
        stored = block.slots or Slice(0, 0)
        if stored.end <= owned.begin or stored.begin >= owned.end:
            continue
        for start, ids in reader.batches(block, batch_rows):
            if count := int(owned.owns(ids.numpy()).sum()):
                batches.append(_Batch(number, start, start + len(ids), count))
    return batches


def _check_finite(tensor: Tensor, where: str, first_row: int = 0) -> None:
    if tensor.is_floating_point():
        check_finite(
            tensor.float().numpy() if tensor.dtype is torch.bfloat16 else tensor.numpy(), where, first_row
        )


class _OwnedRows:
    """The rows [n, ...] of one slot whose ids a shard owns, in stored order; a batch is in memory."""

    def __init__(
        self,
        reader: CheckpointReader,
        table: str,
        slot: str,
        owned: Slice,
        batches: list[_Batch],
        stack: ExitStack,
        is_checked: bool,
    ) -> None:
        name = tensor_name(table, slot)
        self._reader, self._owned, self._batches, self._stack = reader, owned, batches, stack
        self._ids = reader.blocks(tensor_name(table, ID_SLOT))
        self._rows = reader.rows_of(self._ids, name)
        self._ends = list(itertools.accumulate(batch.num_owned for batch in batches))
        self.dtype = reader.tensor_dtype(name)
        self.shape = (self._ends[-1] if batches else 0, *reader.tensor_shape(name)[1:])
        self._is_checked = is_checked
        self._files: dict[str, Any] = {}
        self._held: tuple[int, Tensor] = -1, torch.empty(0)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: slice) -> Tensor:
        start, stop, _ = rows.indices(len(self))
        tensor = torch.empty((stop - start, *self.shape[1:]), dtype=self.dtype)
        begin = start
        while start < stop:
            batch = bisect.bisect_right(self._ends, start)
            first = self._ends[batch] - self._batches[batch].num_owned
            last = min(stop, self._ends[batch])
            tensor[start - begin : last - begin] = self._batch(batch)[start - first : last - first]
            start = last
        return tensor

    def _batch(self, batch: int) -> Tensor:
        if self._held[0] != batch:
            block, start, stop, _ = self._batches[batch]
            self._held = -1, torch.empty(0)
            ids = self._read(self._ids[block], start, stop)
            owned = torch.from_numpy(self._owned.owns(ids.numpy()))
            rows = self._read(self._rows[block], start, stop)
            if self._is_checked:
                _check_finite(rows, f"{self._reader.path}: {self._rows[block].key!r}", start)
            self._held = batch, rows if owned.all() else rows[owned]
        return self._held[1]

    def _read(self, block: Stored, start: int, stop: int) -> Tensor:
        if block.file not in self._files:
            self._files[block.file] = self._stack.enter_context(self._reader.open_file(block))
        rows: Tensor = self._files[block.file].read(block.key, start, stop)
        return rows


def _copy_others(source_uri: str, target_uri: str) -> list[str]:
    lost = []
    for entry in storage.list_dir(source_uri):
        name = storage.name(entry.uri)
        if entry.is_dir or re.fullmatch(_OF_RANKS, name):
            lost.append(name)
        elif not re.fullmatch(_WRITTEN, name):
            storage.copy_file(entry.uri, storage.join(target_uri, name))
    return sorted(lost)
