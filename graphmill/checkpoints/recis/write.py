"""Writing of any checkpoint in RecIS' layout: an entity type is a table, with the ids 0 to N - 1 or a map's.

Of the ids 0 to N - 1, 65536 neighbours have each hash slot once: a shard owns a run in each such cycle.
Names of dense tensors, none of which begins another:

    rhs_operators.0.real                    a parameter, under PBG's key
    global_embs.emb_user/                   likewise, because of global_embs.emb_user_id
    optimizer.sum.rhs_operators.0.real      the Adagrad sums of a parameter
    rhs_operators.0.real.optimizer.sum      the same in checkpoints of earlier versions

RecIS' reader looks for the blocks of a tensor by the beginning of their names. Asked for `K`, that of RecIS
1.0.0 also finds `K.more`, and returns `K` twice. Source: docs/formats/recis.md.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from graphmill import storage
from graphmill.checkpoints import states
from graphmill.checkpoints.checkpoint import Checkpoint, ModelState, Rows
from graphmill.checkpoints.id_maps import IdMaps
from graphmill.checkpoints.recis import HashTable, Saver, Slice, slice_of
from graphmill.checkpoints.recis.hashed import Keyed
from graphmill.checkpoints.recis.layout import EMBEDDING_SLOT, NUM_HASH_SLOTS
from graphmill.checkpoints.recis.safetensors import BatchedRows
from graphmill.checkpoints.whole_tables import (
    Numbers,
    OrderedPiece,
    OrderedTable,
    open_joined,
    open_joined_sums,
)
from graphmill.errors import ConfigError, FormatError
from graphmill.model.parameters import parse_global_key, parse_operator_key

SIDE_FILE = "graphmill_checkpoint.json"
FORMAT_VERSION = 1
ROW_SUMS = "sparse_row_wise_adagrad_state_sum"
ELEMENT_SUMS = "sparse_adagrad_state_sum"
NUM_WRITERS = 4

_SUM = "optimizer.sum."
_OLD_SUM_END = ".optimizer.sum"
_END = "/"  # which no key has


def parameter_names(keys: Iterable[str]) -> dict[str, str]:
    """The name of each parameter's tensor, by key."""
    known = list(keys)
    begins = {key for key in known if any(other != key and other.startswith(key) for other in known)}
    return {key: key + _END if key in begins else key for key in known}


def sum_name(parameter_name: str) -> str:
    """Name of the sums of a parameter whose tensor has this name."""
    return _SUM + parameter_name


def parse_names(dense_names: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Names of the tensors of parameters, and names of the tensors of their sums, by key."""
    parameters: dict[str, str] = {}
    sums: dict[str, str] = {}
    for name in dense_names:
        without_sum = name.removeprefix(_SUM).removesuffix(_OLD_SUM_END)
        key = without_sum.removesuffix(_END)
        if parse_operator_key(key) or parse_global_key(key):
            (parameters if name == without_sum else sums)[key] = name
    return parameters, sums


def owned_runs(count: int, owned: Slice) -> list[range]:
    """The ids among 0 to N - 1 that a shard owns: a run of neighbours in each cycle of hash slots."""
    starts = range(owned.begin, count, NUM_HASH_SLOTS)
    return [range(start, min(start + owned.end - owned.begin, count)) for start in starts]


def write(
    source: Checkpoint,
    target_uri: str,
    shard_num: int = 1,
    id_maps: IdMaps | None = None,
    entity_path: str | None = None,
) -> list[str]:
    """Write `source` in `shard_num` shards, and return the lost content.

    With `id_maps`, the ids of the tables are those of the raw ids in `entity_path`; else 0 to N - 1.
    """
    for name in source.counts:
        if set("@^") & set(name):
            raise FormatError(
                f"entity type {name!r}: expected a name without @ and ^, which RecIS puts between names; "
                "RecIS could not read a table of that name"
            )
    keyed: dict[str, Keyed] | None = None
    if id_maps is not None:
        if entity_path is None:
            raise ConfigError("--entity-path: missing; the raw ids of the checkpoint's rows are there")
        id_maps.check_types(list(source.counts), source.uri)
        keyed = {name: Keyed(source, name, entity_path, id_maps, shard_num) for name in id_maps.maps}
    names = list(source.counts if keyed is None else keyed)
    table_states: dict[str, list[Any]] = {name: [] for name in names}
    sums_dims = dict.fromkeys(names, 0)
    for name, partition, shape in source.partitions():
        if name not in names:
            continue
        state = source.read_optimizer_state(name, partition)
        table_states[name].append(states.without_sums(state))
        sums = states.table_sums(state or {}, shape, f"{source.uri}: {name}_{partition}")
        if sums is not None:
            sums_dims[name] = max(sums_dims[name], sums.dim())
        del state, sums
    model = source.read_model() or ModelState({}, None)
    tensors = _dense_tensors(model)
    model_state = states.without_sums(model.optimizer_state)
    slots = {name: _slots_of(source, name, sums_dims[name], (keyed or {}).get(name)) for name in names}
    for shard in range(shard_num):
        with ExitStack() as stack:
            tables = {}
            for name in names:
                if keyed is None:
                    runs = owned_runs(sum(source.counts[name]), slice_of(shard, shard_num))
                    numbers = partial(map, lambda run: np.arange(run.start, run.stop), runs)
                    ids: Any = BatchedRows((sum(map(len, runs)),), np.dtype(np.int64), numbers)
                else:
                    ids, places = keyed[name].owned(shard)
                    runs = [places]
                rows = {
                    slot: _rows_in(stack.enter_context(open_rows()), runs)
                    for slot, open_rows in slots[name].items()
                }
                tables[name] = HashTable(ids, rows, shard, shard_num)
            Saver(shard, shard_num, NUM_WRITERS, target_uri, tables, tensors).save()
    content = {
        "format_version": FORMAT_VERSION,
        "version": source.version,
        "counts": {
            name: list(source.counts[name]) if keyed is None else [len(keyed[name].ids)] for name in names
        },
        "config": source.config,
        "iteration": asdict(source.iteration) if source.iteration else None,
        "table_states": table_states,
        "model_state": model_state,
    }
    storage.write_json(storage.join(target_uri, SIDE_FILE), content, indent=1)
    if keyed is None:
        return []
    without = [
        f"entity type {name!r}: there is no --id-map of it" for name in source.counts if name not in keyed
    ]
    return without + [line for ids in keyed.values() for line in ids.left_out]


def _rows_in(rows: Rows, runs: list[range]) -> BatchedRows:
    """The rows of a table at the places of these runs."""
    shape = sum(map(len, runs)), rows.shape[1]
    return BatchedRows(shape, np.dtype(np.float32), lambda: chain.from_iterable(map(rows.batches, runs)))


def _dense_tensors(model: ModelState) -> dict[str, Any]:
    names = parameter_names(model.parameters)
    sums = states.sums_of(model.optimizer_state)
    tensors: dict[str, Any] = {names[key]: value for key, value in model.parameters.items()}
    return tensors | {sum_name(names[key]): sums[n] for n, key in enumerate(model.parameters) if n in sums}


OpenRows = Callable[[], AbstractContextManager[Rows]]


def _slots_of(source: Checkpoint, name: str, sums_dim: int, keyed: Keyed | None) -> dict[str, OpenRows]:
    """The rows of each slot of a table: embeddings, and Adagrad sums of one dimension, two or none.

    With keys, rows are in the order of the shards; sorted once, in a temporary file.
    """
    width = source.dimensions[name]
    slots: dict[str, tuple[OpenRows, int]] = {EMBEDDING_SLOT: (partial(open_joined, source, name), width)}
    if sums_dim:
        slot, width = (ROW_SUMS, 1) if sums_dim == 1 else (ELEMENT_SUMS, width)
        slots[slot] = partial(open_joined_sums, source, name, width), width
    if keyed is None:
        return {slot: open_rows for slot, (open_rows, _) in slots.items()}
    count, where = len(keyed.ids), f"{source.uri}: {name!r}"
    return {
        slot: OrderedTable(
            partial(_open_piece, open_rows, keyed.places),
            (count, width),
            where,
            leaves_out=count < len(keyed.places),
        ).open
        for slot, (open_rows, width) in slots.items()
    }


@contextmanager
def _open_piece(open_rows: OpenRows, places: Numbers) -> Iterator[list[OrderedPiece]]:
    with open_rows() as rows:
        yield [OrderedPiece(len(places), places, rows.read)]
