"""Warm start: the rows of the checkpoint at init_path are the first rows of a new run's tables.

A partition, and the table of dynamic relations, may have grown since: ETL with `previous_entity_path`
appends. Rows of ids that ETL has left out since are left out here too (`etl.forget_after`). To check
that the old rows are the first rows, their raw ids are compared with the entities that the checkpoint was
trained with, whose path is in its config.json. The checkpoint's author may be unknown, so that path is opened
only if it lies beside the checkpoint or the configuration names it too; otherwise positions are trusted.
A folder that has other ids by now is not compared; in the place of the run's own entities it is refused.
Entity types and static relations may be added or removed: they are matched by name.
"""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from torch import Tensor

from graphmill import storage
from graphmill.ask.model import Model
from graphmill.checkpoints import pbg
from graphmill.config import Config
from graphmill.errors import FormatError, GraphMillError, NotFoundError
from graphmill.formats import entity_counts, entity_index
from graphmill.model.parameters import in_order, operator_key, parse_global_key, parse_operator_key
from graphmill.run.fingerprints import content_of
from graphmill.run.trained_with import entities_of
from graphmill.vocab import Partition
from train.model.optimizer import Adagrad
from train.tables.given_rows import EarlierRows, Numbers

_REMEDY = (
    "run etl with etl.previous_entity_path set to the entities that the checkpoint was trained with, "
    "or start without init_path"
)

log = logging.getLogger("graphmill")


class WarmStart:
    """The checkpoint that a new run takes its first rows and parameters from."""

    def __init__(self, config: Config, init_path: str) -> None:
        """Raises FormatError where `init_path` has no checkpoint that fits, or its ids have been replaced."""
        self.config = config
        self.entity_path = config.entity_path
        self.earlier_rows = EarlierRows(config.entity_path)
        self.path = init_path
        self.version = pbg.read_version(init_path)
        # PBG takes initial values, put there by hand, as version 0
        if not self.version and not storage.exists(storage.join(init_path, pbg.VERSION_FILE)):
            raise FormatError(f"{init_path}: expected a checkpoint (init_path), found none")
        try:
            self.former: Mapping[str, Any] = pbg.read_config(init_path)
        except NotFoundError:
            self.former = {}
        for key, now in {"comparator": config.comparator, "bias": config.bias}.items():
            if (then := self.former.get(key, now)) != now:
                log.warning("training: %s was trained with %s %s, not %s", init_path, key, then, now)
        self.former_entity_path = self._find_former_entities()
        self._types = saved = pbg.num_partitions(init_path, self.version)
        counts = config.num_partitions
        if others := [name for name in counts if saved.get(name, counts[name]) != counts[name]]:
            told = ", ".join(f"{name!r} has {saved[name]} partitions, here {counts[name]}" for name in others)
            keys = " and ".join(f"entities.{name}.num_partitions to {saved[name]}" for name in others)
            raise FormatError(f"{init_path}: {told}; set {keys}, or start without init_path")

    def has_type(self, entity_type: str) -> bool:
        """Tell whether the checkpoint has embeddings of the type; a type without them is new."""
        if entity_type not in self._types:
            log.info("training: %s has no embeddings of %r: they are drawn", self.path, entity_type)
        return entity_type in self._types

    def load_model(self, model: Model, adagrad: Adagrad) -> None:
        """Load the checkpoint's parameters into `model`, by name, and the state of their optimizer."""
        uri = pbg.model_uri(self.path, self.version)
        state, optimizer_state, _ = pbg.read_model(self.path, self.version)
        now, grown = self.config.dynamic_relations, model.num_relations is not None
        if state and (then := self.former.get("dynamic_relations", now)) != now:
            raise FormatError(
                f"{uri}: expected parameters of a run with dynamic_relations: {str(now).lower()}, found "
                f"{str(then).lower()}; set it as it was, or start without init_path"
            )
        if model.num_relations is not None:
            self._check_relations(state, model.num_relations)
        current = self._current_keys(state)
        model.load_state({current[key]: state[key] for key in state if key in current}, uri, grown=grown)
        if optimizer_state and optimizer_state.get("state"):
            # the optimizer numbers the parameters: both sides' operators, then global embeddings
            types = list(self.former.get("entities", self.config.entities))
            former_keys = in_order(state, types, self.former)
            adagrad.load_state_dict(optimizer_state, map(current.get, former_keys), uri, grown=grown)

    def _current_keys(self, state: Mapping[str, Tensor]) -> dict[str, str]:
        """The current key of each saved parameter, without those of removed relations and types."""
        now = {relation.name: number for number, relation in enumerate(self.config.relations)}
        static = [] if self.former.get("dynamic_relations") else self.former.get("relations", [])
        then = dict(enumerate([str(relation.get("name")) for relation in static] or now))
        renamed = {}
        for key in state:
            parsed = parse_operator_key(key)
            if parsed is None:
                if parse_global_key(key) in self.config.entities:
                    renamed[key] = key
            elif self.config.dynamic_relations:
                renamed[key] = key
            elif (name := then.get(parsed.relation)) in now:
                renamed[key] = operator_key(now[name], parsed.side, parsed.parameter)
        if gone := sorted(state.keys() - renamed.keys()):
            log.info("training: parameters of %s, not needed any more: %s", self.path, ", ".join(gone))
        return renamed

    def kept_rows(
        self, entity_type: str, partition: Partition, saved_shape: tuple[int, int], shape: tuple[int, int]
    ) -> Numbers:
        """Return the saved rows [K], of `saved_shape`, that are the first of a partition's current rows."""
        uri = pbg.embeddings_uri(self.path, entity_type, partition, self.version)
        kept = self.earlier_rows.kept(entity_type, partition, saved_shape[0], uri)
        if len(kept) > shape[0]:
            count_uri = entity_counts.count_uri(self.entity_path, entity_type, partition)
            raise FormatError(f"{uri}: {len(kept)} rows, more than the {shape[0]} of {count_uri}; {_REMEDY}")
        if saved_shape[1] != shape[1]:
            raise FormatError(
                f"{uri}: embeddings have dimension {saved_shape[1]}, the configuration asks for {shape[1]}; "
                "set dimension as it was, or start without init_path"
            )
        self._check_ids(entity_type, partition, saved_shape[0], kept)
        return kept

    def _check_relations(self, state: Mapping[str, Tensor], num_relations: int) -> None:
        """Check that the saved dynamic relations are the first of the current ones."""
        uri = pbg.model_uri(self.path, self.version)
        counts = {len(value) if value.dim() else 0 for value in state.values()}
        if not counts:
            return  # an operator without parameters
        num_saved = max(counts)
        if len(counts) > 1:
            raise FormatError(f"{uri}: parameters of {sorted(counts)} relations; expected one count")
        if num_saved > num_relations:
            count_uri = storage.join(self.entity_path, entity_counts.RELATION_COUNT)
            raise FormatError(
                f"{uri}: {num_saved} relations, more than the {num_relations} of {count_uri}; {_REMEDY}"
            )
        names = _relation_names(self.entity_path, num_relations)
        former = _relation_names(self.former_entity_path, num_saved)
        if names is not None and former is not None:
            moved = [number for number, name in enumerate(former) if names[number] != name]
            if moved:
                raise FormatError(
                    f"{uri}: relation {moved[0]} was {former[moved[0]]!r}, and is {names[moved[0]]!r} in "
                    f"{self.entity_path}; {_REMEDY}"
                )
        elif num_saved < num_relations:
            raise FormatError(
                f"{uri}: {num_saved} relations, {num_relations} today, and no names tell which are the "
                f"same: expected {entity_counts.RELATION_NAMES} of the checkpoint's entities "
                f"({self.former_entity_path or 'not found'}) and in {self.entity_path}; {_REMEDY}"
            )
        else:
            log.info("training: relations of %s are taken by position: no names to compare", self.path)

    def _find_former_entities(self) -> str | None:
        """The path of the entities that the checkpoint was trained with, if it may be opened and exists."""
        former, then = self.former.get("entity_path"), entities_of(self.path)
        set_here = [self.entity_path, getattr(self.config.etl, "previous_entity_path", None)]
        for path in filter(None, set_here if then else ()):
            if content_of(path) == then:
                return str(path)
        if then and former == self.entity_path and content_of(former):
            raise FormatError(f"{former} has other ids than {self.path} was trained with; {_REMEDY}")
        roots = [storage.parent(self.path), *(path for path in set_here if isinstance(path, str))]
        reason = "they cannot be read"
        try:
            if isinstance(former, str) and not any(storage.within(root, former) for root in roots):
                reason = (
                    "they are not beside it, and not opened; set etl.previous_entity_path to them to have "
                    "their raw ids compared"
                )
            elif isinstance(former, str) and storage.exists(former):
                if then is None or content_of(former) in (None, then):
                    return former
                reason = "these have other ids now"
        except GraphMillError as error:  # storage may be down, and the run goes on without the check
            reason = str(error)
        log.info(
            "training: entities are taken by position; %s was trained with %s; %s", self.path, former, reason
        )
        return None

    def _check_ids(self, entity_type: str, partition: Partition, num_saved: int, kept: Numbers) -> None:
        former = self.former_entity_path
        if former is None or storage.absolute(former) == storage.absolute(self.entity_path):
            return
        uris = [entity_index.part_uri(path, entity_type, partition) for path in (former, self.entity_path)]
        if not all(map(storage.exists, uris)):
            log.info("training: %s, partition %d: taken by position: no raw ids", entity_type, partition)
            return
        before = entity_index.read_part(former, entity_type, partition)
        if len(before) != num_saved:
            log.info("training: %s is not of %s; rows are taken by position", uris[0], self.path)
            return
        if len(kept) < num_saved:
            before = before.take(pa.array(kept))
        now = entity_index.read_part(self.entity_path, entity_type, partition)[: len(kept)]
        moved = np.flatnonzero(pc.not_equal(before[: len(now)], now).to_numpy(zero_copy_only=False))
        if len(moved):
            row = int(moved[0])
            raise FormatError(
                f"{uris[1]}: row {row} is raw id {now[row].as_py()!r}, which was {before[row].as_py()!r} "
                f"when {self.path} was trained: entities have moved; {_REMEDY}"
            )


def _relation_names(entity_path: str | None, count: int) -> list[str] | None:
    names = None if entity_path is None else entity_counts.read_relation_names(entity_path)
    # another number of names belongs to other relations: the folder has been written anew
    return names if names is not None and len(names) == count else None
