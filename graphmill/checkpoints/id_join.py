"""Joins of raw ids and int64 ids that may be larger than memory: both sides are divided into files first.

    {folder}/{name}-{number}.arrow      rows whose keys have hashes of one range, on the local disk

Every pair of files is joined in memory. Ids that lack a partner are counted; the caller decides.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphmill import storage
from graphmill.checkpoints.id_maps import MOST_FILES, IdMap, Misses, Numbers
from graphmill.errors import FormatError
from graphmill.formats.murmur import Hashes, hash_strings, scale
from graphmill.sorted_arrays import contains, positions

PIECE_BYTES = 256 << 20
"""Rows of one side that are joined or sorted at once."""

_SEED = 0
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_PAIRS = pa.schema([("raw", pa.string()), ("id", pa.int64())])
_ROWS = pa.schema([("id", pa.int64()), ("row", pa.int64())])
_NAMES = pa.schema([("raw", pa.string()), ("row", pa.int64())])


class Files:
    """Rows divided into Arrow files by number; to be filled, then read in the order of the numbers.

    Of more than `MOST_FILES` numbers, a file holds several; the first that is read divides it.
    """

    def __init__(self, folder: str, name: str, num: int, schema: pa.Schema) -> None:
        self._folder, self._name, self._num = folder, name, num
        self._schema, self._stack = schema, ExitStack()
        self._share = -(-num // MOST_FILES)  # numbers of a file
        self._parts: tuple[int, Files] | None = None  # the file that was divided last
        self._uris = [storage.join(folder, f"{name}-{file}.arrow") for file in range(-(-num // self._share))]
        self._stored = schema if self._share == 1 else schema.append(pa.field("number", pa.int64()))
        streams = [self._stack.enter_context(storage.open_output(uri)) for uri in self._uris]
        self._writers = [self._stack.enter_context(pa.ipc.new_stream(out, self._stored)) for out in streams]

    def __len__(self) -> int:
        return self._num

    def add(self, columns: list[Any], numbers: Numbers) -> None:
        """Append each row to the file of its number."""
        files, within = np.divmod(numbers, self._share)
        arrays = [pa.array(column) for column in ([*columns, within] if self._share > 1 else columns)]
        batch = pa.record_batch(arrays, schema=self._stored)
        batch = batch.take(pa.array(np.argsort(files, kind="stable")))
        ends = np.cumsum(np.bincount(files, minlength=len(self._writers)))
        for file in np.unique(files):
            start = ends[file - 1] if file else 0
            self._writers[file].write_batch(batch.slice(start, ends[file] - start))

    def close(self) -> None:
        """End the writing."""
        self._stack.close()

    def read(self, number: int) -> pa.Table:
        """The rows of one number, which are deleted."""
        if self._share > 1:
            file, within = divmod(number, self._share)
            if self._parts is None or self._parts[0] != file:
                self._parts = file, self._divided(file)
            return self._parts[1].read(within)
        with storage.open_input(self._uris[number]) as stream, pa.ipc.open_stream(stream) as reader:
            table = reader.read_all().combine_chunks()
        storage.delete(self._uris[number])
        return table

    def _divided(self, file: int) -> "Files":
        parts = Files(self._folder, f"{self._name}-{file}", self._share, self._schema)
        batches = self.batches(file)
        while some := list(islice(batches, MOST_FILES)):  # each batch has been cut into as many
            (batch,) = pa.Table.from_batches(some).combine_chunks().to_batches()
            parts.add(batch.columns[:-1], batch.column(len(self._schema)).to_numpy())
        parts.close()
        storage.delete(self._uris[file])
        return parts

    def batches(self, number: int) -> Iterator[pa.RecordBatch]:
        """The rows of one file, batch by batch."""
        with storage.open_input(self._uris[number]) as stream, pa.ipc.open_stream(stream) as reader:
            yield from reader


def num_files(num_bytes: int) -> int:
    """Files into which so many bytes are divided, so that each fits `PIECE_BYTES`."""
    return max(1, -(-num_bytes // PIECE_BYTES))


def _numbered(files: Files, batches: Iterable[Any], place: Callable[[Any, int], Numbers]) -> Files:
    """Fill the files with rows and their numbers, which count over all batches; `place` chooses the file."""
    first = 0
    for batch in batches:
        files.add([batch, np.arange(first, first + len(batch))], place(batch, len(files)))
        first += len(batch)
    files.close()
    return files


def raw_ids_of(
    ids: Iterable[Numbers], num_ids: int, id_map: IdMap, folder: str, misses: Misses, where: str
) -> Iterator[tuple[pa.Array, Numbers]]:
    """Translate the int64 ids of a table's rows: batches of raw ids (string [n]) and their rows [n].

    Rows count over all batches of `ids`. Batches come in any order; ids that cannot be translated are left
    out, and counted in `misses`.
    """
    num = num_files(24 * num_ids + (0 if id_map.is_integers else id_map.estimate_bytes()))
    rows = _numbered(Files(folder, "rows", num, _ROWS), ids, _by_id)
    pairs = Files(folder, "map", num, _PAIRS)
    for raw, batch in () if id_map.is_integers else id_map.batches():
        pairs.add([raw, batch], _by_id(batch, num))
    pairs.close()
    for number in range(num):
        table = rows.read(number).sort_by("id")
        wanted, row = table["id"].to_numpy(), table["row"].to_numpy()
        again = np.flatnonzero(wanted[1:] == wanted[:-1])
        if len(again):
            raise FormatError(f"{where}: id {wanted[again[0]]} stands in two rows; expected each id once")
        if id_map.is_integers:
            yield pc.cast(pa.array(wanted), pa.string()), row
        else:
            yield _join_by_id(pairs.read(number), wanted, row, misses)


def _join_by_id(pairs: pa.Table, wanted: Numbers, row: Numbers, misses: Misses) -> tuple[pa.Array, Numbers]:
    known = _distinct_pairs(pairs)
    raw, ids = known["raw"].combine_chunks(), known["id"].to_numpy()
    is_shared = _has_equal_neighbour(ids)
    misses.shared.add(raw.filter(pa.array(is_shared)))
    is_unmapped = ~contains(ids, wanted)
    misses.unmapped.add(pa.array(wanted[is_unmapped]))
    raw, ids = raw.filter(pa.array(~is_shared)), ids[~is_shared]
    misses.without_row.add(raw.filter(pa.array(~contains(wanted, ids))))
    at = positions(ids, wanted)
    hit = at >= 0
    return raw.take(pa.array(at[hit])), row[hit]


def ids_of(
    raw_ids: Iterable[pa.Array], num_rows: int, id_map: IdMap, folder: str, misses: Misses, where: str
) -> Iterator[tuple[Numbers, Numbers]]:
    """Translate the raw ids of rows, the inverse of `raw_ids_of`: batches of int64 ids [n] and rows [n]."""
    num = num_files(24 * num_rows + (40 * num_rows if id_map.is_integers else id_map.estimate_bytes()))
    names = _numbered(Files(folder, "names", num, _NAMES), raw_ids, _by_raw_id)
    pairs = Files(folder, "map", num, _PAIRS)
    for raw, batch in () if id_map.is_integers else id_map.batches():
        pairs.add([raw, batch], _by_raw_id(raw, num))
    pairs.close()
    translated = Files(folder, "ids", num, _ROWS)
    for number in range(num):
        table = names.read(number)
        raw, row = table["raw"].combine_chunks(), table["row"].to_numpy()
        ids = _parsed(raw) if id_map.is_integers else _join_by_raw_id(pairs.read(number), raw, misses, where)
        is_known = pc.is_valid(ids).to_numpy(zero_copy_only=False)
        misses.unmapped.add(raw.filter(pa.array(~is_known)))
        known = ids.drop_null().to_numpy()
        translated.add([known, row[is_known]], _by_id(known, num))
    translated.close()
    for number in range(num):
        table = translated.read(number).sort_by("id")
        known, row = table["id"].to_numpy(), table["row"].to_numpy()
        is_shared = _has_equal_neighbour(known)
        misses.shared.add(pa.array(known[is_shared]))
        yield known[~is_shared], row[~is_shared]


def _join_by_raw_id(pairs: pa.Table, raw: pa.Array, misses: Misses, where: str) -> pa.Array:
    known = _distinct_pairs(pairs).sort_by("raw")
    values, ids = known["raw"].combine_chunks(), known["id"].combine_chunks()
    again = np.flatnonzero(pc.equal(values[1:], values[:-1]).to_numpy(zero_copy_only=False))
    if len(again):
        at = int(again[0])
        raise FormatError(
            f"{where}: raw id {values[at].as_py()!r} has the ids {ids[at]} and {ids[at + 1]} in the map; "
            "expected one"
        )
    misses.without_row.add(values.filter(pc.invert(pc.is_in(values, value_set=raw))))
    return ids.take(pc.index_in(raw, value_set=values))


def _distinct_pairs(pairs: pa.Table) -> pa.Table:
    """The pairs once each, sorted by int64 id, then by raw id."""
    distinct = pairs.group_by(["id", "raw"]).aggregate([])
    return distinct.sort_by([("id", "ascending"), ("raw", "ascending")])


def _has_equal_neighbour(ids: Numbers) -> Any:
    same = np.zeros(len(ids) + 1, np.bool_)
    same[1:-1] = ids[1:] == ids[:-1]
    return same[1:] | same[:-1]


def _parsed(raw: pa.Array) -> pa.Array:
    """int64 ids in decimal digits; null where a raw id is none, or another spelling of one."""
    looks = pc.match_substring_regex(raw, r"^(0|-?[1-9][0-9]{0,18})$")
    fits = pc.if_else(looks, raw, None)
    try:
        return pc.cast(fits, pa.int64())
    except pa.ArrowInvalid:  # some have 19 digits, but 64 bits are not enough
        texts = fits.to_pylist()
        return pa.array([int(t) if t and -(2**63) <= int(t) < 2**63 else None for t in texts], pa.int64())


def _by_id(ids: Numbers, num: int) -> Numbers:
    mixed: Hashes = ids.view(np.uint64) * _GOLDEN
    return scale(mixed, num).astype(np.int64)


def _by_raw_id(raw: pa.Array, num: int) -> Numbers:
    return scale(hash_strings(raw, _SEED), num).astype(np.int64)
