"""RecIS' checkpoints as `Checkpoint`: one table per entity type, with integer ids over all partitions.

    {type}@id, {type}@embedding                     rows
    {type}@sparse_row_wise_adagrad_state_sum        [N, 1], the name of RecIS' own optimizer; or
    {type}@sparse_adagrad_state_sum                 [N, D]
    rhs_operators.0.real, global_embs.emb_user      dense: parameters, under PBG's keys (see `recis_names`)
    optimizer.sum.rhs_operators.0.real              dense: their Adagrad sums
    graphmill_checkpoint.json                       content that the layout cannot keep: version,
                                                    partitions, configuration, iteration, scalars of
                                                    optimizers

RecIS itself writes no graphmill_checkpoint.json. The tensors of such a checkpoint are its only content.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

from graphmill import storage
from graphmill.checkpoints import states
from graphmill.checkpoints.checkpoint import Checkpoint, ModelState
from graphmill.checkpoints.ordered import OrderedTable, Piece
from graphmill.checkpoints.recis_names import check_table_names, parameter_names, parse_names, sum_name
from graphmill.checkpoints.recis_reshard import reshard
from graphmill.checkpoints.recis_shard import OwnedIds, OwnedRows
from graphmill.checkpoints.whole_tables import JoinedRows, JoinedSums, WholeTablesCheckpoint
from graphmill.errors import FormatError
from graphmill.formats.pbg_checkpoint import Iteration
from graphmill.formats.recis import CheckpointReader, HashTable, Saver, newest, slice_of
from graphmill.formats.recis.layout import EMBEDDING_SLOT, ID_SLOT, tensor_name
from graphmill.vocab import Partition

log = logging.getLogger("graphmill")

SIDE_FILE = "graphmill_checkpoint.json"
FORMAT_VERSION = 1
ROW_SUMS = "sparse_row_wise_adagrad_state_sum"
ELEMENT_SUMS = "sparse_adagrad_state_sum"

_WRITERS = 4


class RecisCheckpoint(WholeTablesCheckpoint):
    """A checkpoint in RecIS' layout."""

    format = "recis"

    def __init__(self, uri: str, entity_path: str | None = None, **_: object) -> None:
        """Counts of partitions are in `entity_path`; by default in the checkpoint. FormatError on damage."""
        newest_uri = newest(uri)
        if newest_uri != uri:
            log.info("%s: the newest checkpoint is %s", uri, newest_uri)
        uri = newest_uri
        self._reader = CheckpointReader(uri)
        self._recorded = _read_side_file(storage.join(uri, SIDE_FILE))
        self._slots = self._reader.table_slots()
        for name, slots in self._slots.items():
            if EMBEDDING_SLOT not in slots:
                raise FormatError(f"{uri}: table {name!r} has no slot {EMBEDDING_SLOT!r}, only {slots}")
        tables = {name: _ordered_table(self._reader, name, EMBEDDING_SLOT) for name in self._slots}
        recorded = self._recorded
        super().__init__(uri, recorded["version"], tables, recorded["counts"], entity_path)
        self._sums_tables: dict[str, OrderedTable] = {}

    def _read_optimizer_state(self, entity_type: str, partition: Partition) -> dict[str, Any] | None:
        import torch

        slot = next((each for each in (ROW_SUMS, ELEMENT_SUMS) if each in self._slots[entity_type]), None)
        if self._recorded["table_states"] is not None:
            plain = self._recorded_state(entity_type, partition)
        else:
            plain = None if slot is None else _UNKNOWN_STATE
        if plain is None:
            return None
        sums = {}
        if plain["state"] and slot is not None:
            if entity_type not in self._sums_tables:
                self._sums_tables[entity_type] = _ordered_table(self._reader, entity_type, slot)
            with self._open_partition(self._sums_tables[entity_type], entity_type, partition) as rows:
                found = torch.from_numpy(rows.read(0, rows.shape[0]))
            sums[0] = found.reshape(-1) if slot == ROW_SUMS else found
        return states.with_sums(plain, sums)

    def _read_model(self) -> ModelState | None:
        found, sum_names = parse_names(self._reader.dense_names())
        if not found and self._recorded["table_states"] is None:
            return None
        keys = self._in_order(found)
        parameters = {key: self._reader.read_tensor(found[key]).float() for key in keys}
        plain = self._recorded["model_state"]
        if plain is None:
            return ModelState(parameters, None)
        sums = {
            number: self._reader.read_tensor(sum_names[key])
            for number, key in enumerate(keys)
            if key in sum_names
        }
        return ModelState(parameters, states.with_sums(plain, sums) if plain["param_groups"] else {})

    @property
    def reader(self) -> CheckpointReader:
        """The reader of the files."""
        return self._reader

    @property
    def config(self) -> dict[str, Any] | None:
        """The configuration in graphmill_checkpoint.json."""
        config: dict[str, Any] | None = self._recorded["config"]
        return config

    @property
    def iteration(self) -> Iteration | None:
        """The iteration in graphmill_checkpoint.json."""
        found = self._recorded["iteration"]
        return Iteration(**found) if found else None

    @property
    def unread(self) -> list[str]:
        """Names of tensors that are no embeddings, sums or parameters."""
        known_names = {name for names in parse_names(self._reader.dense_names()) for name in names.values()}
        dense = [name for name in self._reader.dense_names() if name not in known_names]
        known = (EMBEDDING_SLOT, ROW_SUMS, ELEMENT_SUMS)
        slots = [f"{name}@{slot}" for name, each in self._slots.items() for slot in each if slot not in known]
        return dense + slots

    def _recorded_state(self, entity_type: str, partition: Partition) -> Any:
        recorded = self._recorded["table_states"].get(entity_type)
        if not isinstance(recorded, list) or not recorded:
            raise FormatError(f"{self.uri}: {SIDE_FILE}: table_states: expected a list for {entity_type!r}")
        # entity_path may have other partitions: all but the sums is the same for all rows.
        return recorded[partition if len(recorded) == len(self.counts[entity_type]) else 0]


def _ordered_table(reader: CheckpointReader, entity_type: str, slot: str) -> OrderedTable:
    name = tensor_name(entity_type, slot)
    shape = reader.tensor_shape(name)
    if len(shape) > 2 or not reader.tensor_dtype(name).is_floating_point:
        raise FormatError(f"{reader.path}: {name!r}: expected floats (rows, dimension), found {shape}")
    shape_ND = shape[0], shape[1] if len(shape) == 2 else 1
    return OrderedTable(partial(_open_pieces, reader, entity_type, slot), shape_ND, f"{reader.path}: {name}")


# A checkpoint of RecIS itself records the sums alone.
_UNKNOWN_STATE: dict[str, Any] = {
    "state": {"0": {"step": 0}},
    "param_groups": [{"lr": 0.01, "lr_decay": 0, "weight_decay": 0, "params": [0]}],
}


def write(source: Checkpoint, target_uri: str, shard_num: int = 1) -> list[str]:
    """Write `source` in `shard_num` shards, and return the lost content: nothing of a format with tables."""
    if isinstance(source, RecisCheckpoint):
        return reshard(source.reader, target_uri, shard_num, _WRITERS)
    check_table_names(source.counts)
    table_states: dict[str, list[Any]] = {name: [] for name in source.counts}
    sums_dims = dict.fromkeys(source.counts, 0)
    for name, partition, shape in source.partitions():
        state = source.read_optimizer_state(name, partition)
        table_states[name].append(None if state is None else states.without_sums(state))
        sums = states.table_sums(state or {}, shape, f"{source.uri}: {name}_{partition}")
        if sums is not None:
            sums_dims[name] = max(sums_dims[name], sums.dim())
        del state, sums
    model = source.read_model()
    tensors = _dense_tensors(model) if model else {}
    for shard in range(shard_num):
        with ExitStack() as stack:
            tables = {
                name: _owned_table(source, name, sums_dims[name], shard, shard_num, stack)
                for name in source.counts
            }
            Saver(shard, shard_num, _WRITERS, target_uri, tables, tensors).save()
    content = {
        "format_version": FORMAT_VERSION,
        "version": source.version,
        "counts": {name: list(counts) for name, counts in source.counts.items()},
        "config": source.config,
        "iteration": asdict(source.iteration) if source.iteration else None,
        "table_states": table_states,
        "model_state": _plain_model_state(model),
    }
    storage.write_text(storage.join(target_uri, SIDE_FILE), json.dumps(content, indent=1) + "\n")
    return []


def _plain_model_state(model: ModelState | None) -> dict[str, Any] | None:
    if model is None or model.optimizer_state is None:
        return None
    return states.without_sums({"param_groups": [], **model.optimizer_state})


def _dense_tensors(model: ModelState) -> dict[str, Any]:
    names = parameter_names(model.parameters)
    sums = states.sums_of(model.optimizer_state)
    tensors: dict[str, Any] = {names[key]: value for key, value in model.parameters.items()}
    return tensors | {sum_name(names[key]): sums[n] for n, key in enumerate(model.parameters) if n in sums}


def _owned_table(
    source: Checkpoint, name: str, sums_dim: int, shard: int, shard_num: int, stack: ExitStack
) -> HashTable:
    owned = slice_of(shard, shard_num)
    rows = stack.enter_context(JoinedRows(source, name))
    slots = {EMBEDDING_SLOT: OwnedRows(rows, owned)}
    if sums_dim:
        slot, width = (ROW_SUMS, 1) if sums_dim == 1 else (ELEMENT_SUMS, rows.shape[1])
        slots[slot] = OwnedRows(JoinedSums(source, name, width), owned)
    return HashTable(OwnedIds(rows.shape[0], owned), slots, shard, shard_num)


@contextmanager
def _open_pieces(reader: CheckpointReader, table: str, slot: str) -> Iterator[list[Piece]]:
    """Open the blocks of a slot, and the blocks of its ids."""
    name = tensor_name(table, slot)
    id_blocks, row_blocks = reader.blocks(tensor_name(table, ID_SLOT)), reader.blocks(name)
    if [block.slots for block in id_blocks] != [block.slots for block in row_blocks]:
        raise FormatError(f"{reader.path}: {name!r}: its slices are not those of the ids")
    pieces = []
    with ExitStack() as stack:
        for ids, rows in zip(id_blocks, row_blocks, strict=True):
            if reader.entry(ids).shape != reader.entry(rows).shape[:1]:
                raise FormatError(f"{reader.path}: {rows.key!r}: has not as many rows as {ids.key!r}")
            read_ids = partial(stack.enter_context(reader.open_file(ids)).read, ids.key)
            read_rows = partial(_read_floats, stack.enter_context(reader.open_file(rows)), rows.key)
            pieces.append(Piece(reader.entry(ids).shape[0], read_ids, read_rows))
        yield pieces


def _read_floats(file: Any, key: str, start: int, stop: int) -> Any:
    return file.read(key, start, stop).float()


def _read_side_file(uri: str) -> dict[str, Any]:
    """The content of graphmill_checkpoint.json; without the file, None under each key."""
    unknown = dict.fromkeys(("counts", "table_states", "config", "iteration", "model_state"))
    if not storage.exists(uri):
        return {**unknown, "version": 0}
    content = storage.read_json(uri)
    version = content.get("format_version")
    if version != FORMAT_VERSION:
        raise FormatError(f"{uri}: format_version is {version}; this reader knows {FORMAT_VERSION}")
    expected = {"version": int, "counts": dict, "table_states": dict}
    for key, kind in expected.items():
        if not isinstance(content.get(key), kind):
            raise FormatError(f"{uri}: {key}: expected {kind.__name__}, found {content.get(key)!r:.60}")
    return {**unknown, **content}
