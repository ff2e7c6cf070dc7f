"""A user's map from raw ids to the int64 ids of a program that hashes them.

    {file}.parquet, or a folder of such files; other columns are ignored
        a column of strings       the raw id
        a column of integers      its id; uint64 stands for the int64 of the same bits

Source: docs/how_to/convert.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphmill import storage
from graphmill.errors import FormatError, NotFoundError
from graphmill.formats.parquet import iter_columns, open_parquet

INTEGERS = "int64"
"""In the place of a file: the raw ids are the int64 themselves, in decimal digits."""

_BATCH_ROWS = 1 << 16

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class IdMap:
    """Raw ids and int64 ids; `uri` is a file, a folder, or `INTEGERS`.

    Attributes:
        uri: parquet file or folder.
        columns: names of the columns of raw ids and of int64 ids; None: found by their types.
    """

    uri: str
    columns: tuple[str, str] | None = None

    @property
    def is_integers(self) -> bool:
        """Whether the raw ids are the int64 themselves."""
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
                    yield raw.cast(pa.string()), _as_int64(ids)

    def _uris(self) -> list[str]:
        if not storage.is_dir(self.uri):
            return [self.uri]
        found = [
            entry.uri
            for entry in storage.list_dir(self.uri, recursive=True)
            if not entry.is_dir
            and entry.uri.endswith(".parquet")
            and not storage.name(entry.uri).startswith("_")
        ]
        if not found:
            raise NotFoundError(f"{self.uri}: expected a map of ids, *.parquet, found none")
        return sorted(found)

    def _columns_of(self, schema: pa.Schema, uri: str) -> list[str]:
        kinds = {
            "strings": [field.name for field in schema if _is_text(field.type)],
            "integers": [field.name for field in schema if pa.types.is_integer(field.type)],
        }
        if self.columns is not None:
            for name, (kind, known) in zip(self.columns, kinds.items(), strict=True):
                if name not in known:
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


def _is_text(kind: pa.DataType) -> bool:
    values = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(values) or pa.types.is_large_string(values))


def _as_int64(ids: pa.Array) -> Numbers:
    if pa.types.is_uint64(ids.type):
        return np.asarray(ids.to_numpy()).view(np.int64)
    return np.asarray(ids.cast(pa.int64()).to_numpy())
