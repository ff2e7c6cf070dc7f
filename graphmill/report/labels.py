"""Labels of entities, by which a map is coloured: two columns of a table that the user names."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from graphmill.errors import ConfigError
from graphmill.formats.parquet import bounds, open_parquet
from graphmill.formats.raw_tables.columns import column_names, iter_strings


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
        """
        wanted, label_of = pa.array(raw_ids, pa.string()), dict[str, str]()
        for columns in self._batches():
            table = pa.table(columns, ["id", "label"])
            texts = table.filter(pc.is_in(table["id"], wanted)).drop_null()
            for raw_id, label in zip(texts["id"].to_pylist(), texts["label"].to_pylist(), strict=True):
                label_of.setdefault(raw_id, label)
        return label_of

    def _batches(self) -> Iterator[list[pa.Array]]:
        """Batches of the two columns; an empty field of CSV is no label."""
        if self.uri.endswith(".parquet"):
            with open_parquet(self.uri) as parquet:
                bounds.check_whole(parquet, self.uri)
                self._check(parquet.schema_arrow.names)
                for batch in parquet.iter_batches(columns=list(self.columns)):
                    yield [batch.column(name).cast(pa.string()) for name in self.columns]
            return
        names = column_names(self.uri)
        self._check(names)
        for ids, labels in iter_strings(self.uri, [names.index(name) for name in self.columns]):
            yield [ids, pc.if_else(pc.equal(labels, ""), None, labels)]

    def _check(self, names: list[str]) -> None:
        for column in self.columns:
            if column not in names:
                there = ", ".join(names)
                raise ConfigError(
                    f"{self.uri}: expected a column {column!r}, found {there}; give the columns of ids and "
                    "of labels with --label-columns"
                )
