"""Labels of entities, by which a map is coloured: two columns of a table that the user names."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from graphmill import storage
from graphmill.errors import ConfigError, FormatError
from graphmill.formats.parquet import bounds


@dataclass(frozen=True)
class Labels:
    """Columns of raw ids and of labels of a file, parquet or CSV, about one entity type."""

    uri: str
    columns: tuple[str, str] = ("id", "label")
    entity_type: str | None = None
    """None: the first type that has embeddings."""

    def of(self, raw_ids: list[str]) -> dict[str, str]:
        """The label of each of `raw_ids` that has one; of several labels of an id, the first.

        Reads the file in batches.

        Raises:
            ConfigError: the file has no such column.
            FormatError: the file is damaged.
        """
        wanted, found = pa.array(raw_ids, pa.string()), dict[str, str]()
        try:
            for batch in self._batches():
                table = pa.Table.from_batches([batch]).rename_columns(["id", "label"])
                texts = pa.table({name: table[name].cast(pa.string()) for name in ("id", "label")})
                texts = texts.filter(pc.is_in(texts["id"], wanted)).drop_null()
                for raw_id, label in zip(texts["id"].to_pylist(), texts["label"].to_pylist(), strict=True):
                    found.setdefault(raw_id, label)
        except (pa.ArrowException, OSError) as error:
            raise FormatError(f"{self.uri}: expected columns of ids and labels: {error}") from error
        return found

    def _batches(self) -> Iterator[pa.RecordBatch]:
        """Batches of the two columns."""
        names = list(self.columns)
        with storage.open_input(self.uri) as stream:
            if self.uri.endswith(".parquet"):
                parquet = pq.ParquetFile(stream)
                bounds.check_whole(parquet, self.uri)
                self._check(parquet.schema_arrow.names)
                yield from (each.select(names) for each in parquet.iter_batches(columns=names))
            else:  # as text: the id 007 is not the number 7, and an empty cell is no label
                as_text = pacsv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()), null_values=[""], strings_can_be_null=True
                )
                parts = pacsv.open_csv(stream, convert_options=as_text)
                self._check(parts.schema.names)
                yield from (each.select(names) for each in parts)

    def _check(self, names: list[str]) -> None:
        for column in self.columns:
            if column not in names:
                found = ", ".join(names)
                raise ConfigError(
                    f"{self.uri}: expected a column {column!r}, found {found}; give the columns of ids and "
                    "of labels with --label-columns"
                )
