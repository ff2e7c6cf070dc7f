"""RecIS' checkpoints with other shards: all tables, slots and dense tensors as they are, whatever their ids.

The model's `model.pt` and `extra.pt`, which RecIS saves beside the tables, are copied unread.
"""

import math
import re
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from graphmill import storage
from graphmill.checkpoints.finite import check_finite
from graphmill.checkpoints.recis import CheckpointReader, HashTable, Saver, slice_of
from graphmill.checkpoints.recis.layout import ID_SLOT, INDEX, MULTI_SHARD, TENSOR_KEYS, Stored, tensor_name
from graphmill.checkpoints.recis.safetensors import BatchedRows
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
    is_checked = not allow_non_finite
    for shard in range(shard_num):
        tables = {
            table: _owned_table(reader, table, slots, shard, shard_num, is_checked=is_checked)
            for table, slots in reader.table_slots().items()
        }
        dense = {names[name]: reader.read_tensor(name) for name in names} if shard == 0 else {}
        for name, tensor in dense.items() if is_checked else ():
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


def _owned_table(
    reader: CheckpointReader, table: str, slots: list[str], shard: int, shard_num: int, *, is_checked: bool
) -> HashTable:
    """The rows of a table whose ids a shard owns, in stored order; a batch is in memory."""
    owned = slice_of(shard, shard_num)
    ids = reader.blocks(tensor_name(table, ID_SLOT))
    names = [tensor_name(table, slot) for slot in (ID_SLOT, *slots)]
    widest = max(math.prod(reader.tensor_shape(n)[1:]) * reader.tensor_dtype(n).itemsize for n in names)
    batch_rows = max(1, _BATCH_BYTES // widest)
    masks = (mask for block in ids for _, mask, _ in reader.owned_rows([block], owned, batch_rows))
    count = sum(int(mask.sum()) for mask in masks)

    def batches(blocks: list[Stored]) -> Iterator[Tensor]:
        for part in zip(ids, blocks, strict=True):
            for start, is_owned, (*_, rows) in reader.owned_rows([*dict.fromkeys(part)], owned, batch_rows):
                if is_checked:
                    _check_finite(rows, f"{reader.path}: {part[1].key!r}", start)
                yield rows[is_owned]

    def rows_of(name: str) -> BatchedRows:
        shape = count, *reader.tensor_shape(name)[1:]
        return BatchedRows(shape, reader.tensor_dtype(name), partial(batches, reader.rows_of(ids, name)))

    id_rows, *rows = map(rows_of, names)
    return HashTable(id_rows, dict(zip(slots, rows, strict=True)), shard, shard_num)


def _check_finite(tensor: Tensor, where: str, first_row: int = 0) -> None:
    values = tensor.float() if tensor.dtype is torch.bfloat16 else tensor
    check_finite(values.numpy(), where, first_row)


def _copy_others(source_uri: str, target_uri: str) -> list[str]:
    lost = []
    for entry in storage.list_dir(source_uri):
        name = storage.name(entry.uri)
        if entry.is_dir or re.fullmatch(_OF_RANKS, name):
            lost.append(name)
        elif not re.fullmatch(_WRITTEN, name):
            storage.copy_file(entry.uri, storage.join(target_uri, name))
    return sorted(lost)
