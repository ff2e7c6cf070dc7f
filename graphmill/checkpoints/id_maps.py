"""A user's maps from raw ids to the int64 ids of a program that hashes them, and ids that they lack.

    {file}.parquet, or a folder of such files; other columns are ignored
        a column of strings       the raw id
        a column of integers      its id; uint64 stands for the int64 of the same bits

Source: docs/how_to/convert.md.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphmill import storage
from graphmill.display.readable import quoted
from graphmill.errors import ConfigError, FormatError, NotFoundError
from graphmill.formats.parquet import files_at, iter_columns, open_parquet
from graphmill.formats.raw_ids import is_text

INTEGERS = "int64"
"""In the place of a file: the raw ids are the int64 themselves, in decimal digits."""

MOST_FILES = 256  # two sets of files may be open at once, of 1024 open files

_BATCH_ROWS = 1 << 16
_NUM_EXAMPLES = 5

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class IdMap:
    """Raw ids and int64 ids; `uri` is a parquet file, a folder of such files, or `INTEGERS`.

    `columns` has the names of the columns of raw ids and of int64 ids; None: found by their types.
    """

    uri: str
    columns: tuple[str, str] | None = None

    @property
    def is_integers(self) -> bool:
        """Tell whether the raw ids are the int64 themselves."""
        return self.uri == INTEGERS

    def estimate_bytes(self) -> int:
        """About the memory that the whole map would take, from the footers of its files."""
        total = 0
        for uri in self._uris():
            with open_parquet(uri) as parquet:
                groups = [parquet.metadata.row_group(n) for n in range(parquet.metadata.num_row_groups)]
                total += sum(3 * group.total_byte_size + 64 * group.num_rows for group in groups)
        return total

    def batches(self) -> Iterator[tuple[pa.Array, Numbers]]:
        """Raw ids (string [n]) and int64 ids [n]."""
        for uri in self._uris():
            with open_parquet(uri) as parquet:
                columns = self._columns_of(parquet.schema_arrow, uri)
                for _, (raw, ids) in iter_columns(parquet, uri, columns, _BATCH_ROWS):
                    is_unsigned = pa.types.is_uint64(ids.type)
                    numbers = (ids if is_unsigned else ids.cast(pa.int64())).to_numpy()
                    yield raw.cast(pa.string()), numbers.view(np.int64)

    def _uris(self) -> list[str]:
        if not (uris := files_at(self.uri, recursive=True)):
            raise NotFoundError(f"{self.uri}: expected a map of ids, *.parquet, found none")
        return uris

    def _columns_of(self, schema: pa.Schema, uri: str) -> list[str]:
        kinds = {
            "strings": [field.name for field in schema if is_text(field.type)],
            "integers": [field.name for field in schema if pa.types.is_integer(field.type)],
        }
        if self.columns is not None:
            for name, (kind, known) in zip(self.columns, kinds.items(), strict=True):
                if known.count(name) != 1:
                    raise FormatError(
                        f"{uri}: expected a column {name!r} of {kind}, found {', '.join(known) or 'none'}"
                    )
            return list(self.columns)
        for kind, known in kinds.items():
            if len(known) != 1:
                raise FormatError(
                    f"{uri}: expected one column of {kind}, found {', '.join(known) or 'none'}: name the "
                    "columns of raw ids and int64 ids with --id-map-columns RAW,ID"
                )
        return [known[0] for known in kinds.values()]


@dataclass
class Unpaired:
    """Ids without a partner: their number, and the first few."""

    num: int = 0
    examples: list[Any] = field(default_factory=list)

    def add(self, ids: pa.Array) -> None:
        """Count some ids."""
        self.num += len(ids)
        self.examples += ids[: max(0, _NUM_EXAMPLES - len(self.examples))].to_pylist()

    def __str__(self) -> str:
        return f"{self.num} ({quoted(self.examples)}{', ...' if self.num > len(self.examples) else ''})"


@dataclass
class Misses:
    """Ids that a join could not translate.

    Attributes:
        unmapped: ids of the rows that the map lacks.
        shared: raw ids of the map whose int64 id another raw id has as well.
        without_row: raw ids of the map that have no row.
    """

    unmapped: Unpaired = field(default_factory=Unpaired)
    shared: Unpaired = field(default_factory=Unpaired)
    without_row: Unpaired = field(default_factory=Unpaired)


@dataclass(frozen=True)
class IdMaps:
    """Maps of ids by table, and how to place raw ids.

    Attributes:
        maps: map of each table; tables without a map are left out.
        num_partitions: partitions of each entity type.
        seed: seed of the hash that places raw ids, as the key `seed` of a configuration.
        leave_out: leave ids out that cannot be translated; otherwise they are an error.
    """

    maps: Mapping[str, IdMap]
    num_partitions: int = 1
    seed: int = 0
    leave_out: bool = False

    def check_types(self, known: Sequence[str], where: str) -> None:
        """Refuse a map of an unknown type."""
        for name in self.maps:
            if name not in known:
                raise ConfigError(f"--id-map {name}=...: {where} has no {name!r}, only {', '.join(known)}")
        if not 1 <= self.num_partitions <= MOST_FILES:
            raise ConfigError(f"--partitions: expected 1 to {MOST_FILES}, found {self.num_partitions}")

    def checked(self, name: str, misses: Misses, where: str) -> list[str]:
        """Lines about ids that are left out; an error where they must not be."""
        wrong = [
            (misses.unmapped, f"ids of {name!r} that its map lacks"),
            (misses.shared, f"ids of {name!r} that share one int64 id"),
        ]
        lines = [f"{ids} {what}" for ids, what in wrong if ids.num]
        if lines and not self.leave_out:
            raise FormatError(
                f"{where}: {'; '.join(lines)}: complete the map, or leave these ids out with --leave-out"
            )
        if misses.without_row.num:
            lines.append(f"{misses.without_row} raw ids of the map of {name!r}, which have no row")
        return lines


def parse_id_maps(given: Iterable[str], columns: str | None = None) -> dict[str, IdMap]:
    """Parse `TYPE=FILE` or `TYPE=int64` of the command line, and `RAW,ID`, the names of columns."""
    names = None if columns is None else columns.split(",")
    if names is not None and (len(names) != 2 or not all(names)):
        raise ConfigError(f"--id-map-columns: expected RAW,ID, found {columns!r}")
    maps: dict[str, IdMap] = {}
    for text in given:
        name, sign, uri = text.partition("=")
        if not (name and sign and uri):
            raise ConfigError(f"--id-map: expected TYPE=FILE or TYPE={INTEGERS}, found {text!r}")
        if name in maps:
            raise ConfigError(f"--id-map: expected each type once, found {name!r} again")
        uri = uri if uri == INTEGERS else storage.absolute(uri)
        maps[name] = IdMap(uri, (names[0], names[1]) if names else None)
    return maps
