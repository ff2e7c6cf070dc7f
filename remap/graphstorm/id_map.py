"""Lookup of raw ids by integer id, in tables on the machine's disk that all workers of the machine map.

    {scratch}/{number of the type}/
        place       uint32 or uint64 [N]    1 + the row of each integer id; 0: not seen yet
        chars       the raw ids, one after the other
        offsets     int64 [more than N]     begin of each row in `chars`, and end of the row before
        numbers     int64 or uint64 [N]     instead of `chars` and `offsets`, where raw ids are integers
        hashes      uint64 [N or more]      hash of each raw id, batch after batch, to find duplicates
        taken       int64 [2 or 3]          rows, hashes and bytes that batches have taken

The workers of a machine share the parts of the map and read each part once. A worker holds at most one batch
of ids. A batch takes the next rows and bytes: one row per id, and one row for the end. Rows of a dead worker
stay unused, and its ids may have two hashes. Mapped pages count as memory of the worker, but the system can
take them back.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphmill import storage
from graphmill.ask.ids import Texts, hashes_of, repeated, suspected
from graphmill.checkpoints.graphstorm import id_maps
from graphmill.checkpoints.graphstorm.id_maps import MapFile
from graphmill.checkpoints.id_maps import Numbers
from graphmill.display import progress
from graphmill.errors import FormatError
from graphmill.machine import scratch
from remap.graphstorm.unique_ids import Ids, first_repeated

PART_ROWS = 1 << 20
DISTINCT_ROWS = 1 << 24  # 128 MiB of hashes


@dataclass(frozen=True)
class MapPart:
    """Row groups of one file of the map."""

    file: MapFile
    groups: tuple[int, ...]
    num_rows: int


@dataclass(frozen=True)
class MapPlan:
    """Parts of the map of one entity type; small, because every task receives it."""

    entity_type: str
    folder: str
    kind: pa.DataType
    num_ids: int
    parts: tuple[MapPart, ...]

    @property
    def place_dtype(self) -> npt.DTypeLike:
        """The narrowest type that fits: random reads of a smaller table are faster."""
        return np.uint32 if self.num_ids < 1 << 31 else np.uint64


def plan_map(mapping_path: str, entity_type: str, folder: str) -> MapPlan:
    """Plan the parts of the map of a type, from the footers of the files alone."""
    files = id_maps.list_raw_id_map(mapping_path, entity_type)
    parts: list[MapPart] = []
    for file in files:
        num_rows, groups = 0, list[int]()
        for group, group_rows in enumerate(file.group_rows):
            groups.append(group)
            num_rows += group_rows
            if num_rows >= PART_ROWS or group == len(file.group_rows) - 1:
                parts.append(MapPart(file, tuple(groups), num_rows))
                num_rows, groups = 0, []
    num_ids = sum(part.num_rows for part in parts)
    return MapPlan(entity_type, folder, files[0].kind, num_ids, tuple(parts))


class IdTable:
    """The finished table of one type."""

    def __init__(self, plan: MapPlan, folder: str) -> None:
        self.plan = plan
        self._place = scratch.map_array(storage.join(folder, "place"), plan.place_dtype)
        if pa.types.is_integer(plan.kind):
            self._numbers = scratch.map_array(storage.join(folder, "numbers"), plan.kind.to_pandas_dtype())
            return
        chars = scratch.map_array(storage.join(folder, "chars"), np.uint8)
        offsets = scratch.map_array(storage.join(folder, "offsets"), np.int64)
        self._texts = Texts(self._place, offsets, chars)

    def take(self, nids: Numbers, where: str, first_row: int) -> pa.ChunkedArray:
        """Look up the raw ids of integer ids [n]; errors name `where`, and count rows from `first_row`."""
        if (row := _first_outside(nids, self.plan.num_ids)) is not None:
            num = self.plan.num_ids
            ids = f"0 to {num - 1}" if num else "none"
            raise FormatError(
                f"{where}: row {first_row + row}: the id is {nids[row]}; expected {ids}, as the map of "
                f"{self.plan.entity_type!r} has {num} ids"
            )
        if pa.types.is_integer(self.plan.kind):
            return pa.chunked_array([np.take(self._numbers, np.take(self._place, nids) - 1)], self.plan.kind)
        return self._texts.take(nids)


@lru_cache(maxsize=64)
def open_table(plan: MapPlan, scratch_path: str) -> IdTable:
    """Open the table of a type, which the first caller on this machine makes; one per process."""
    folder = storage.join(scratch_path, plan.folder)
    _TableWriter(plan, folder).write()
    return IdTable(plan, folder)


class _TableWriter:
    """Makes the table of a type, together with the other workers of the machine."""

    def __init__(self, plan: MapPlan, folder: str) -> None:
        self.plan, self.folder = plan, folder

    def write(self) -> None:
        scratch.make_together(self.folder, ["reserved"], self._reserve)
        parts = [f"part-{number}" for number in range(len(self.plan.parts))]
        scratch.make_together(self.folder, parts, self._read_part)
        scratch.make_together(self.folder, ["complete"], self._check_complete)
        num_shares = 1 << (max(self.plan.num_ids - 1, 0) // DISTINCT_ROWS).bit_length()
        shares = [f"distinct-{share}-{num_shares}" for share in range(num_shares)]
        scratch.make_together(self.folder, shares, self._check_distinct)

    @cached_property
    def _place(self) -> npt.NDArray[Any]:
        return scratch.map_array(self._file("place"), self.plan.place_dtype, writable=True)

    def _file(self, name: str) -> str:
        return storage.join(self.folder, name)

    def _reserve(self, name: str) -> None:
        scratch.reserve(self._file("place"), self.plan.num_ids * np.dtype(self.plan.place_dtype).itemsize)
        own = ["numbers"] if pa.types.is_integer(self.plan.kind) else ["chars", "offsets"]
        for table in ["hashes", *own]:
            scratch.reserve(self._file(table), 0)  # these files grow

    def _read_part(self, name: str) -> None:
        part = self.plan.parts[int(name.removeprefix("part-"))]
        num_read, num_ids = 0, self.plan.num_ids
        for row, orig, new in id_maps.iter_raw_id_map(part.file, part.groups):
            if (wrong := _first_outside(new, num_ids)) is not None:
                raise FormatError(
                    f"{part.file.uri}: row {row + wrong}: {part.file.new} is {new[wrong]}; expected 0 to "
                    f"{num_ids - 1}, as the map of {self.plan.entity_type!r} has {num_ids} rows: is one of "
                    "its files missing?"
                )
            first = self._write_batch(orig)
            self._place[new] = np.arange(first + 1, first + 1 + len(new), dtype=self.plan.place_dtype)
            num_read += len(new)
            progress.report(f"reading the map of {self.plan.entity_type}", num_read, part.num_rows, "rows")
        if num_read != part.num_rows:
            raise FormatError(
                f"{part.file.uri}: expected {part.num_rows} rows as its footer says, found {num_read}"
            )

    def _write_batch(self, raw_ids: pa.Array) -> int:
        """Write a batch of raw ids, and their hashes; return its first row."""
        hashes = hashes_of(raw_ids)
        if pa.types.is_integer(self.plan.kind):
            row, first_hash = scratch.allot(self._file("taken"), [len(raw_ids), len(raw_ids)])
            scratch.write_at(self._file("numbers"), row * 8, raw_ids.to_numpy())
        else:
            chars, ends = _split(raw_ids)
            sizes = [len(ends), len(raw_ids), len(chars)]
            row, first_hash, first_byte = scratch.allot(self._file("taken"), sizes)
            scratch.write_at(self._file("chars"), first_byte, chars)
            scratch.write_at(self._file("offsets"), row * 8, ends + first_byte)
        scratch.write_at(self._file("hashes"), first_hash * 8, hashes)
        return row

    def _check_complete(self, name: str) -> None:
        if np.count_nonzero(self._place) == self.plan.num_ids:
            return
        missing = int(np.flatnonzero(self._place == 0)[0])
        rows = (
            Ids(part.file.uri, row, new)
            for part in self.plan.parts
            for row, _, new in id_maps.iter_raw_id_map(part.file, part.groups)
        )
        if (repeated_id := first_repeated(rows, 0, self.plan.num_ids)) is not None:
            uri, row, again = repeated_id
            raise FormatError(
                f"{uri}: row {row}: {self.plan.parts[0].file.new} {again} comes again in the map of "
                f"{self.plan.entity_type!r}; {missing} does not come at all"
            )
        raise FormatError(f"{self.plan.parts[0].file.uri}: the map has changed while it was being read")

    def _check_distinct(self, name: str) -> None:
        """Refuse a raw id with two integer ids, among the ids of one share of the hashes."""
        share, num_shares = (np.uint64(int(number)) for number in name.split("-")[1:])
        hashes_N = scratch.map_array(self._file("hashes"), np.uint64)
        pieces = [np.empty(0, np.uint64)]
        for start in range(0, len(hashes_N), PART_ROWS):
            hashes = hashes_N[start : start + PART_ROWS]
            pieces.append(hashes[hashes & (num_shares - np.uint64(1)) == share])
        suspects = repeated(np.concatenate(pieces))
        if not len(suspects):
            return
        nids: dict[Any, int] = {}
        for part in self.plan.parts:
            for row, orig, new in id_maps.iter_raw_id_map(part.file, part.groups):
                for again, raw_id in suspected(orig, suspects):
                    nid = int(new[again])
                    first = nids.setdefault(raw_id, nid)
                    if first != nid:
                        raise FormatError(
                            f"{part.file.uri}: row {row + again}: raw id {raw_id!r} has the ids {first} and "
                            f"{nid} in the map of {self.plan.entity_type!r}; expected one"
                        )


def _first_outside(nids: Numbers, num_ids: int) -> int | None:
    """The first position of an id that is not between 0 and `num_ids` - 1."""
    if not len(nids) or (nids.min() >= 0 and nids.max() < num_ids):
        return None
    return int(np.flatnonzero((nids < 0) | (nids >= num_ids))[0])


def _split(raw_ids: pa.StringArray) -> tuple[npt.NDArray[np.uint8], Numbers]:
    """The bytes of strings [n], and the offset of each string and of the end [n + 1]."""
    _, offsets_buffer, chars_buffer = raw_ids.buffers()
    first = raw_ids.offset
    offsets = np.frombuffer(offsets_buffer, np.int32)[first : first + len(raw_ids) + 1]
    chars = np.frombuffer(chars_buffer or b"", np.uint8)[offsets[0] : offsets[-1]]
    return chars, offsets.astype(np.int64) - offsets[0]
