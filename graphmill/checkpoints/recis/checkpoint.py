"""RecIS' checkpoints as `Checkpoint`: one table per entity type, with integer ids over all partitions.

    {type}@id, {type}@embedding                     rows
    {type}@sparse_row_wise_adagrad_state_sum        [N, 1], the slot of RecIS' optimizer since 1.2.18; or
    {type}@sparse_adagrad_state_sum                 [N, D], likewise since 1.2
    rhs_operators.0.real, global_embs.emb_user      dense: parameters, under PBG's keys (see `write`)
    optimizer.sum.rhs_operators.0.real              dense: their Adagrad sums
    graphmill_checkpoint.json                       content that the layout cannot keep: version,
                                                    partitions, configuration, iteration, scalars of
                                                    optimizers

RecIS itself writes no graphmill_checkpoint.json. The tensors of such a checkpoint are its only content.
"""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import NonNegativeInt, TypeAdapter

from graphmill import storage
from graphmill.checkpoints import states
from graphmill.checkpoints.checkpoint import Checkpoint, Iteration, ModelState
from graphmill.checkpoints.id_maps import IdMaps
from graphmill.checkpoints.recis import CheckpointReader, newest
from graphmill.checkpoints.recis import write as others
from graphmill.checkpoints.recis.hashed import TranslatedIds
from graphmill.checkpoints.recis.layout import EMBEDDING_SLOT, ID_SLOT, tensor_name
from graphmill.checkpoints.recis.reshard import reshard
from graphmill.checkpoints.recis.write import ELEMENT_SUMS, FORMAT_VERSION, ROW_SUMS, SIDE_FILE, parse_names
from graphmill.checkpoints.whole_tables import Numbers, OrderedPiece, OrderedTable, WholeTablesCheckpoint
from graphmill.errors import FormatError
from graphmill.storage.as_json import read_as
from graphmill.vocab import Partition

log = logging.getLogger("graphmill")

_HINT = (
    "; hashed ids need a map: graphmill convert and remap with --id-map TYPE=FILE, or TYPE=int64 where the "
    "raw ids are these integers"
)


@dataclass(frozen=True)
class Recorded:
    """The content of graphmill_checkpoint.json; None without the file."""

    version: int
    counts: dict[str, list[NonNegativeInt]] | None
    table_states: dict[str, list[states.RecordedState | None]] | None
    config: dict[str, Any] | None = None
    iteration: Iteration | None = None
    model_state: states.RecordedState | None = None


def read_recorded(uri: str) -> Recorded:
    """Read graphmill_checkpoint.json; without the file, nothing is known."""
    if not storage.exists(uri):
        return Recorded(0, None, None)
    expected = "what belongs to a checkpoint"
    recorded = read_as(TypeAdapter(Recorded), storage.read_text(uri), uri, expected, FORMAT_VERSION)
    if recorded.config is not None:
        states.checked_config(recorded.config, f"{uri}: config")
    return recorded


class RecisCheckpoint(WholeTablesCheckpoint):
    """A checkpoint in RecIS' layout."""

    def __init__(
        self, uri: str, entity_path: str | None = None, id_maps: IdMaps | None = None, **_: object
    ) -> None:
        """Open the checkpoint, or the newest one of a training run.

        Counts of partitions are in `entity_path`; by default in the checkpoint. With `id_maps`, the ids of
        the tables become raw ids, which are placed in partitions; tables without a map are left out.
        """
        newest_uri = newest(uri)
        if newest_uri != uri:
            log.info("%s: the newest checkpoint is %s", uri, newest_uri)
        uri = newest_uri
        self.reader = CheckpointReader(uri)
        self._recorded = read_recorded(storage.join(uri, SIDE_FILE))
        self._slots = self.reader.table_slots()
        for name, slots in self._slots.items():
            if EMBEDDING_SLOT not in slots:
                raise FormatError(f"{uri}: table {name!r} has no slot {EMBEDDING_SLOT!r}, only {slots}")
        self.translated: dict[str, TranslatedIds] = {}
        self.entity_path: str | None = None  # where the raw ids of translated tables will be
        if id_maps is not None:
            id_maps.check_types(list(self._slots), uri)
            self.translated = {name: TranslatedIds(self.reader, name, id_maps) for name in id_maps.maps}
        names = list(self.translated or self._slots)
        tables = {name: self._ordered_table(name, EMBEDDING_SLOT) for name in names}
        counts = {name: table.counts for name, table in self.translated.items()} or self._recorded.counts
        super().__init__(uri, self._recorded.version, tables, counts, entity_path)
        self._sums_tables: dict[str, OrderedTable] = {}

    def _read_optimizer_state(self, entity_type: str, partition: Partition) -> dict[str, Any] | None:
        import torch

        slot = next((name for name in (ROW_SUMS, ELEMENT_SUMS) if name in self._slots[entity_type]), None)
        if (table_states := self._recorded.table_states) is None:
            recorded = None if slot is None else _UNKNOWN_STATE
        elif of_type := table_states.get(entity_type):
            # entity_path may have other partitions: all but the sums is the same for all rows.
            recorded = of_type[partition if len(of_type) == len(self.counts[entity_type]) else 0]
        else:
            raise FormatError(f"{self.uri}: {SIDE_FILE}: table_states: expected a list for {entity_type!r}")
        if recorded is None:
            return None
        sums = {}
        if recorded.state and slot is not None:
            if entity_type not in self._sums_tables:
                self._sums_tables[entity_type] = self._ordered_table(entity_type, slot)
            with self._open_partition(self._sums_tables[entity_type], entity_type, partition) as rows:
                values = torch.from_numpy(rows.read(0, rows.shape[0]))
            sums[0] = values.reshape(-1) if slot == ROW_SUMS else values
        return states.with_sums(recorded, sums, self.uri)

    def _read_model(self) -> ModelState | None:
        names, sum_names = parse_names(self.reader.dense_names())
        if not names and self._recorded.table_states is None:
            return None
        keys = self._in_order(names)
        parameters = {key: self.reader.read_tensor(names[key]).float() for key in keys}
        recorded = self._recorded.model_state
        if recorded is None:
            return ModelState(parameters, None)
        sums = {
            number: self.reader.read_tensor(sum_names[key])
            for number, key in enumerate(keys)
            if key in sum_names
        }
        state = states.with_sums(recorded, sums, self.uri) if recorded.param_groups else {}
        return ModelState(parameters, state)

    @property
    def config(self) -> dict[str, Any] | None:
        """The configuration in graphmill_checkpoint.json, with the partitions of raw ids."""
        config = self._recorded.config
        if config is None or not self.translated:
            return config
        nums = self.num_partitions
        entities = {
            name: {**entity, "num_partitions": nums.get(name, entity.get("num_partitions", 1))}
            for name, entity in config.get("entities", {}).items()
        }
        return {**config, "entities": entities}

    def described_config(self) -> dict[str, Any]:
        """The configuration, with the place of the raw ids if a map of ids has given them."""
        place = {} if self.entity_path is None else {"entity_path": self.entity_path}
        return super().described_config() | place

    @property
    def iteration(self) -> Iteration | None:
        """The iteration in graphmill_checkpoint.json."""
        return self._recorded.iteration

    @property
    def unread(self) -> list[str]:
        """Names of tensors that are no embeddings, sums or parameters."""
        known_names = {name for names in parse_names(self.reader.dense_names()) for name in names.values()}
        dense = [name for name in self.reader.dense_names() if name not in known_names]
        known = (EMBEDDING_SLOT, ROW_SUMS, ELEMENT_SUMS)
        slots = [f"{name}@{slot}" for name in self.counts for slot in self._slots[name] if slot not in known]
        return dense + slots

    @property
    def left_out(self) -> list[str]:
        """Tables without a map, and ids that their map or table lacks."""
        without = [name for name in self._slots if self.translated and name not in self.translated]
        lines = [f"table {name!r}: there is no --id-map of it" for name in without]
        return lines + [line for table in self.translated.values() for line in table.left_out]

    def _ordered_table(self, entity_type: str, slot: str) -> OrderedTable:
        name = tensor_name(entity_type, slot)
        shape, uri = self.reader.tensor_shape(name), self.reader.path
        if len(shape) > 2 or not self.reader.tensor_dtype(name).is_floating_point:
            raise FormatError(f"{uri}: {name!r}: expected floats (rows, dimension), found {shape}")
        translated = self.translated.get(entity_type)
        num_rows = shape[0] if translated is None else sum(translated.counts)
        new_ids = None if translated is None else translated.new_ids
        return OrderedTable(
            partial(_open_pieces, self.reader, entity_type, slot, new_ids),
            (num_rows, shape[1] if len(shape) == 2 else 1),
            f"{uri}: {name}",
            leaves_out=translated is not None,
            hint=_HINT,
        )


# A checkpoint of RecIS itself records the sums alone.
_UNKNOWN_STATE = states.RecordedState(
    {0: {"step": 0}}, [{"lr": 0.01, "lr_decay": 0, "weight_decay": 0, "params": [0]}]
)


def write(source: Checkpoint, target_uri: str, shard_num: int = 1, **options: Any) -> list[str]:
    """Write `source` in `shard_num` shards, and return the lost content; see `write.write`."""
    if isinstance(source, RecisCheckpoint) and not source.translated:
        return reshard(source.reader, target_uri, shard_num, allow_non_finite=source.allow_non_finite)
    return others.write(source, target_uri, shard_num, **options)


@contextmanager
def _open_pieces(
    reader: CheckpointReader, table: str, slot: str, new_ids: Numbers | None
) -> Iterator[list[OrderedPiece]]:
    """Open the blocks of a slot, and the blocks of its ids, which `new_ids` of all blocks may replace."""
    id_blocks = reader.blocks(tensor_name(table, ID_SLOT))
    row_blocks = reader.rows_of(id_blocks, tensor_name(table, slot))
    pieces, first = [], 0
    with ExitStack() as stack:
        for ids, rows in zip(id_blocks, row_blocks, strict=True):
            num_rows = reader.entry(ids).shape[0]
            if new_ids is None:
                own_ids: Any = partial(stack.enter_context(reader.open_file(ids)).read, ids.key)
            else:
                own_ids = new_ids[first : first + num_rows]
            read_rows = partial(_read_floats, stack.enter_context(reader.open_file(rows)), rows.key)
            pieces.append(OrderedPiece(num_rows, own_ids, read_rows))
            first += num_rows
        yield pieces


def _read_floats(file: Any, key: str, start: int, stop: int) -> Any:
    return file.read(key, start, stop).float()
