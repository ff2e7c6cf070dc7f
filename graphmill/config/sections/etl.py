"""The section `etl`: tables of edges and entities, and the memory that a task may take."""

from collections.abc import Iterable
from datetime import date, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from graphmill.config.section import Fixed, Flag, Neutral, Section
from graphmill.config.values import Count, Fraction, Name, Positive, RelationName, TypeName
from graphmill.vocab import TRAIN_SPLIT

Paths = Annotated[
    tuple[str, ...],
    BeforeValidator(
        lambda given: [given] if isinstance(given, str) else given,
        json_schema_input_type=str | tuple[str, ...],
    ),
]
Column = str | Annotated[int, Field(ge=0)]
FileFormat = Literal["parquet", "csv", "orc", "json"]
TableFormat = Literal["delta", "iceberg"]
Scalar = bool | int | float | str | None
Operator = Literal["==", "=", "!=", "<", "<=", ">", ">=", "in", "not in"]
Condition = tuple[str, Operator, Scalar | tuple[Scalar, ...]]


def _as_filters(given: Any) -> Any:
    """Return one list of conditions as the only one of several; lists as tuples, dates as text."""
    plain = _plain(given)
    is_flat = isinstance(plain, tuple) and plain and isinstance(plain[0], tuple)
    return (plain,) if is_flat and plain[0] and isinstance(plain[0][0], str) else plain


def _plain(given: Any) -> Any:
    if isinstance(given, datetime):
        return given.isoformat(" ")
    if isinstance(given, date):
        return given.isoformat()
    return tuple(map(_plain, given)) if isinstance(given, list | tuple) else given


Filters = Annotated[
    tuple[tuple[Condition, ...], ...],
    BeforeValidator(_as_filters, json_schema_input_type=list[Condition] | list[list[Condition]]),
]
"""Rows to read, as pandas and pyarrow write it: any of these lists of conditions, of which all hold."""
KeepOrDrop = Literal["keep", "drop"]
Compression = Literal["lz4", "zstd", "none"]


class FilesConfig(Section):
    """The files of a raw table."""

    path: Fixed[Annotated[Paths, Field(min_length=1, strict=False)]] = Field(
        description="File, folder or glob pattern, or a list of these; relative paths start at `input`."
    )
    format: Fixed[Literal["auto", FileFormat, TableFormat]] = Field(
        "auto",
        description="Format of the files; auto: by suffix, or by the log of a Delta Lake or Iceberg table. "
        "csv: delimited text; json: one object per line.",
    )
    filters: Fixed[Filters] = Field(
        (),
        description='Rows to read: `[[day, ">=", "2026-11-01"], [country, in, [de, at]]]`; all conditions '
        "hold. A list of such lists: one of them holds. Files that cannot have such rows, by their folders "
        "or their table's log, are not opened.",
    )
    snapshot: Fixed[int | str | None] = Field(
        None,
        description="Version of a Delta Lake table; id, tag or branch of an Iceberg snapshot; null: newest.",
    )
    catalog: Fixed[Name | None] = Field(
        None,
        description="Catalog of an Iceberg table, as PyIceberg's configuration names it; `path` is then "
        "the table's name: shop.orders.",
    )
    data_path: Fixed[Annotated[Paths, Field(strict=False)]] = Field(
        (),
        description="Further folders that files of a Delta Lake or Iceberg table may lie in; others outside "
        "the table's folder are refused.",
    )
    missing_paths: Fixed[Literal["fail", "skip"]] = Field(
        "fail",
        description="fail: a path without files stops the run; skip: a warning, if other paths have "
        "files; a table with `removes` needs none.",
    )
    delimiter: Fixed[Annotated[str | None, Flag(metavar="CHARACTER")]] = Field(
        None, description="Delimiter of text; null: a tab for .tsv, .tab and .txt, else a comma."
    )
    header: Fixed[Annotated[bool, Flag("--header/--no-header")]] = Field(
        True, description="Column names are in the first row of text."
    )
    quoting: Fixed[bool | None] = Field(
        None, description='Text may have "quoted" fields; null: yes, unless the delimiter is a tab.'
    )
    max_field_lines: Fixed[Positive] = Field(
        1000, description="Most lines of a quoted field; a longer one counts as a quote that nothing closes."
    )
    null_values: Fixed[Annotated[tuple[str, ...], Field(strict=False)]] = Field(
        (), description='Fields of text that stand for null, if they have no quotes: `["\\N", "NULL"]`.'
    )
    comment: Fixed[Annotated[str, Field(min_length=1)] | None] = Field(
        None, description='Beginning of lines of text and JSON to leave out: `"#"`; null: there are none.'
    )
    encoding: Fixed[Annotated[str, Flag(metavar="NAME")]] = Field(
        "utf-8",
        description="Encoding of text and JSON, as Python names it: utf-8, utf-16, latin-1, cp1252, ...",
    )

    @field_validator("delimiter")
    @classmethod
    def _one_byte(cls, delimiter: str | None) -> str | None:
        if delimiter is not None and (len(delimiter.encode()) != 1 or delimiter in '"\r\n'):
            raise ValueError(f"expected one character of ASCII, no quote or line end, found {delimiter!r}")
        return delimiter

    @field_validator("comment")
    @classmethod
    def _in_one_line(cls, comment: str | None) -> str | None:
        if comment is not None and (comment == '"' or set(comment) & set("\r\n")):
            raise ValueError(f"expected the beginning of lines, such as #, found {comment!r}")
        return comment

    @field_validator("encoding")
    @classmethod
    def _known(cls, encoding: str) -> str:
        try:
            b"\n".decode(encoding, "replace")
        except (LookupError, ValueError):
            raise ValueError(f"expected one of Python's codecs for text, found {encoding!r}") from None
        return encoding

    @field_validator("filters")
    @classmethod
    def _fitting(cls, filters: Iterable[Iterable[Condition]]) -> Iterable[Iterable[Condition]]:
        if () in filters:
            raise ValueError("expected conditions such as [day, '>=', '2026-11-01'], found an empty list")
        for column, operator, value in (condition for every in filters for condition in every):
            is_list = isinstance(value, tuple)
            if value == ():
                raise ValueError(f"[{column}, {operator!r}]: expected values, found an empty list")
            if is_list != operator.endswith("in"):
                expected = "one value" if is_list else "a list of values"
                raise ValueError(f"[{column}, {operator!r}]: expected {expected}, found {value!r}")
            if value is None and operator not in ("==", "=", "!="):
                raise ValueError(f"[{column}, {operator!r}]: null is only == or !=")
        return filters

    @model_validator(mode="after")
    def _check_snapshot(self) -> Self:
        if self.catalog is not None and (self.format not in ("auto", "iceberg") or len(self.path) != 1):
            raise ValueError("catalog: expected one path, the name of an Iceberg table (shop.orders)")
        return self

    def columns(self) -> dict[str, Column]:
        """Column of each field of an edge (lhs, rhs, relation, weight) or of an entity (id)."""
        keys = {"lhs": "lhs", "rhs": "rhs", "relation": "relation_column", "weight": "weight", "id": "id"}
        named = {field: getattr(self, key, None) for field, key in keys.items()}
        return {field: column for field, column in named.items() if column is not None}


class EntityTableConfig(FilesConfig):
    """A table of entities of one type, which are indexed even if no edge has them."""

    type: Fixed[TypeName] = Field(description="Entity type of all rows.")
    id: Fixed[Column] = Field(
        description="Column of raw ids: its name, its number from 0, or `event.user` for a field of a struct."
    )


class TableConfig(FilesConfig):
    """A table of edges."""

    lhs: Fixed[Column] = Field(
        description="Column of the left-hand sides: its name, its number from 0, or `event.user` for a field "
        "of a struct."
    )
    rhs: Fixed[Column] = Field(description="Column of the right-hand sides.")
    relation: Fixed[RelationName | None] = Field(None, description="Relation of every row.")
    relation_column: Fixed[Column | None] = Field(None, description="Column of each row's relation.")
    weight: Fixed[Column | None] = Field(None, description="Column of edge weights; null: all weigh 1.")
    split: Fixed[Name] = Field(TRAIN_SPLIT, description="Split that the edges belong to.")
    removes: Fixed[bool] = Field(
        False,
        description="true: rows are no edges, but take out equal edges (lhs, relation, rhs) of the split "
        "that tables before this one have.",
    )
    feature_delimiter: Fixed[Annotated[str, Field(min_length=1)]] = Field(
        " ", description="Delimiter of the features of a featurized entity in a column of text."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.relation is None) == (self.relation_column is None):
            which = "neither" if self.relation is None else "both"
            raise ValueError(
                f"expected one of relation (the same for every row) and relation_column, found {which}"
            )
        named = list(self.columns().values())
        twice = next((column for column in named if named.count(column) > 1), None)
        if twice is not None:
            raise ValueError(f"column {twice!r} is named twice; every part of an edge has its own column")
        return self


class WholeTableConfig(FilesConfig):
    """A table of any rows, which is read with all its columns: see `etl.pieces`."""

    names: Fixed[tuple[str, ...]] = Field((), description="Columns to read, in order.")

    def columns(self) -> dict[str, Column]:
        """Column of each field; fields are numbered, as their names must not be those of edges."""
        return {f"column {number}": name for number, name in enumerate(self.names)}


Table = TableConfig | EntityTableConfig | WholeTableConfig


class EtlConfig(Section):
    """The section `etl`."""

    key = "etl"

    tables: Fixed[Annotated[tuple[TableConfig, ...], Field(min_length=1, strict=False)]] = Field(
        description="Tables of edges."
    )
    entities: Fixed[Annotated[tuple[EntityTableConfig, ...], Field(strict=False)]] = Field(
        (), description="Tables of entities, isolated ones included."
    )
    holdout: Fixed[dict[Name, Annotated[float, Field(ge=0, lt=1)]]] = Field(
        {}, description="Fraction of the train split's edges that each split takes; equal edges go together."
    )
    min_entity_count: Fixed[Count | dict[TypeName, Count]] = Field(
        0, description="Fewest train edges of an entity, as one number or by type; others are left out."
    )
    min_relation_count: Fixed[Count] = Field(0, description="Fewest train edges of a relation, likewise.")
    duplicates: Fixed[KeepOrDrop] = Field("keep", description="Equal edges of a split; drop: keep the first.")
    self_loops: Fixed[KeepOrDrop] = Field("keep", description="Edges with the same entity on both sides.")
    on_bad_row: Fixed[Literal["fail", "quarantine"]] = Field(
        "fail", description="fail: a bad row stops the run; quarantine: it goes to a table of bad rows."
    )
    quarantine_path: Neutral[str | None] = Field(
        None, description="Folder of the table of bad rows; null: `quarantine` under `output`."
    )
    max_bad_fraction: Fixed[Fraction] = Field(
        0.01, description="Largest fraction of bad rows; with more the run fails."
    )
    compare_files: Neutral[Literal["time", "content"]] = Field(
        "time",
        description="How a plain file is known to be that of the last run. time: by its URI, size and time "
        "of change; content: by its URI, size and checksum, for which the driver reads all files.",
    )
    previous_entity_path: Neutral[str | None] = Field(
        None, description="Entity index of an earlier run: its ids keep their indices, new ids follow."
    )
    previous_edge_path: Neutral[str | None] = Field(
        None,
        description="Folder `edges` of the run of previous_entity_path: edges of files that it had too "
        "are taken from there, and only other files are read.",
    )
    forget_after: Fixed[Positive | None] = Field(
        None,
        description="Days after which an id that no row names any more is left out, counted by --date; "
        "null: never.",
    )
    graphstorm_maps: Fixed[bool] = Field(False, description="Also write GraphStorm's raw_id_mappings/.")
    chunk_rows: Neutral[Positive] = Field(
        2_000_000, description="Rows that a task encodes at once: 0.35 GiB of memory + 0.1 GiB per million."
    )
    index_bytes: Neutral[Positive] = Field(512 << 20, description="Memory of a task that sorts ids; bytes.")
    merge_bytes: Neutral[Positive] = Field(256 << 20, description="Edges that a task merges at once; bytes.")
    max_opens: Neutral[Positive | Literal["auto"]] = Field(
        "auto",
        description="Opens of intermediate files that a step may take; if more, it first combines the files. "
        "auto: 100,000 on HDFS, else 1,000,000.",
    )
    spill_compression: Neutral[Literal["auto", Compression]] = Field(
        "auto", description="Compression of intermediate files; auto: none on local disks, else lz4."
    )
    entity_names: Fixed[bool] = Field(
        False, description="Also write PBG's JSON files of names, for torchbiggraph_export_to_tsv."
    )
    work_replication: Neutral[Positive] = Field(2, description="Copies of intermediate files on HDFS.")
    work_path: Neutral[str | None] = Field(
        None, description="Folder of intermediate files, reached by all workers; null: beside the entities."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if TRAIN_SPLIT in self.holdout:
            raise ValueError(f"holdout.{TRAIN_SPLIT}: the other splits are taken out of it; name those only")
        if sum(self.holdout.values()) >= 1:
            raise ValueError("holdout: the fractions add up to 1 or more, which leaves no edge to train on")
        return self

    def min_count(self, entity_type: str) -> int:
        """Fewest train edges that an entity of the type needs."""
        counts = self.min_entity_count
        return counts if isinstance(counts, int) else counts.get(entity_type, 0)

    def splits(self) -> tuple[str, ...]:
        """Names of all splits, train first, the others in the order in which the section names them."""
        named = [table.split for table in self.tables]
        return tuple(dict.fromkeys([TRAIN_SPLIT, *self.holdout, *named]))
