"""Loading of a shard's tables and dense tensors, from any number of saved shards."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphmill.errors import FormatError
from graphmill.formats._safetensors import dtype_of
from graphmill.formats.recis import names
from graphmill.formats.recis.index import Stored
from graphmill.formats.recis.names import Numbers, UnknownTensorError
from graphmill.formats.recis.reader import CheckpointReader
from graphmill.formats.recis.tables import HashTable

_BATCH_BYTES = 4 << 20

LoadInfo = dict[str, str]


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
        self._reader = CheckpointReader(checkpoint_path)
        self._hashtables, self._tensors = dict(hashtables or {}), dict(tensors or {})
        self._parallel = max(1, parallel)
        self._filter_func = filter_func
        self._allow_missing = allow_missing

    def load(self) -> None:
        """Fill the tables and tensors.

        Raises:
            UnknownTensorError: names are missing in the checkpoint, and that is not allowed; a KeyError.
            FormatError: a tensor has another shape, a table lacks a slice or has an id twice, a file is
                damaged, or the filter leaves out some of a table's slots.
        """
        wanted = [*self._tensors, *(name for table in self._hashtables for name in self._slot_names(table))]
        load_info = self._filter_func({name: name for name in wanted})
        self._check_whole_tables(load_info)
        known = set(self._reader.tensor_names())
        missing = sorted(name for name, source in load_info.items() if source not in known)
        if missing and not self._allow_missing:
            raise UnknownTensorError(
                f"{self._reader.path}: no tensors {', '.join(missing)}; "
                f"it has {', '.join(sorted(known)[:20])}"
            )
        present = {name: source for name, source in load_info.items() if source in known}
        with ThreadPoolExecutor(self._parallel, "recis-reader") as pool:
            reads = [
                pool.submit(self._load_dense, name, source)
                for name, source in present.items()
                if name in self._tensors
            ]
            for table in self._hashtables:
                sources = {name: present[name] for name in self._slot_names(table) if name in present}
                if len(sources) == len(self._slot_names(table)):
                    reads += [
                        pool.submit(self._load_part, table, part) for part in self._parts(table, sources)
                    ]
            for read in reads:
                read.result()
        for name, filled in self._hashtables.items():
            self._check_distinct(name, np.sort(np.asarray(filled.ids)))

    def _check_distinct(self, table: str, ids: Numbers) -> None:
        again = np.flatnonzero(ids[1:] == ids[:-1])
        if len(again):
            raise FormatError(
                f"{self._reader.path}: table {table!r}: expected each id once, found {ids[again[0]]} again"
            )

    def _check_whole_tables(self, load_info: LoadInfo) -> None:
        for table in self._hashtables:
            left_out = [name for name in self._slot_names(table) if name not in load_info]
            if left_out and len(left_out) < len(self._slot_names(table)):
                raise FormatError(
                    f"table {table!r}: filter_func left out {', '.join(left_out)}: rows are loaded with all "
                    "slots of their table, or not at all; give a table without that slot"
                )

    def _slot_names(self, table: str) -> list[str]:
        slots = [names.ID_SLOT, *self._hashtables[table].slots]
        return [names.tensor_name(table, slot) for slot in slots]

    def _load_dense(self, name: str, source: str) -> None:
        target, value = self._tensors[name], self._reader.read_tensor(source)
        if tuple(target.shape) != tuple(value.shape):
            raise FormatError(
                f"{self._reader.path}: {source!r} has shape {tuple(value.shape)}, "
                f"expected {tuple(target.shape)}"
            )
        if isinstance(target, Tensor):
            with torch.no_grad():
                target.copy_(value)
        else:
            target[...] = value.to(dtype_of(target)).numpy()

    def _parts(self, table: str, sources: Mapping[str, str]) -> list[dict[str, Stored]]:
        """The blocks by name of each stored slice that intersects the table's own."""
        own = self._hashtables[table].slice
        id_name = names.tensor_name(table, names.ID_SLOT)
        parts: list[dict[str, Stored]] = []
        covered = own.begin
        for id_block in self._reader.blocks(sources[id_name]):
            slots = id_block.slots
            if slots is None or not slots.intersects(own):
                continue
            if slots.begin > covered:
                break
            covered = slots.end
            part = {}
            for name, source in sources.items():
                matching = [each for each in self._reader.blocks(source) if each.slots == slots]
                if (
                    not matching
                    or self._reader.entry(matching[0]).shape[:1] != self._reader.entry(id_block).shape
                ):
                    raise FormatError(
                        f"{self._reader.path}: {source!r} lacks the rows of the ids of slice {slots}"
                    )
                part[name] = matching[0]
            parts.append(part)
        if covered < own.end:
            raise FormatError(
                f"{self._reader.path}: table {table!r} has no ids of the hash slots {covered} to {own.end}: "
                "a shard's file is missing in its index"
            )
        return parts

    def _load_part(self, table: str, part: Mapping[str, Stored]) -> None:
        target = self._hashtables[table]
        id_name = names.tensor_name(table, names.ID_SLOT)
        entries = {name: self._reader.entry(block) for name, block in part.items()}
        num_rows = entries[id_name].shape[0]
        if not num_rows:
            return
        widest = max((entry.stop - entry.start) // num_rows for entry in entries.values())
        batch_rows = max(1, _BATCH_BYTES // max(widest, 1))
        with ExitStack() as stack:
            files = {name: stack.enter_context(self._reader.open_file(block)) for name, block in part.items()}
            for start in range(0, num_rows, batch_rows):
                stop = min(start + batch_rows, num_rows)
                batch = {name: files[name].read(block.key, start, stop) for name, block in part.items()}
                ids = batch.pop(id_name).to(torch.int64).numpy()
                owned = torch.from_numpy(target.slice.owns(ids))
                rows = {name.rpartition("@")[2]: value[owned] for name, value in batch.items()}
                target.insert(ids[owned.numpy()], rows)
