"""The section `etl`: which tables hold the edges, and how much memory a task may take."""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from graphmill.config import Fraction, Name, Positive, Section, TypeName
from graphmill.vocab import TRAIN_SPLIT

Column = str | Annotated[int, Field(ge=0)]
Format = Literal["auto", "parquet", "csv", "orc", "json"]
Count = Annotated[int, Field(ge=0, lt=2**63)]
KeepOrDrop = Literal["keep", "drop"]
Compression = Literal["lz4", "zstd", "none"]


class FilesConfig(Section):
    """Where the files of a raw table are, and how they are read."""

    path: Annotated[tuple[str, ...], Field(min_length=1, strict=False)] = Field(
        description="files, folders or glob patterns, relative to `input`; one, or a list"
    )
    format: Format = Field(
        "auto", description="auto: by the file's suffix; csv is any delimited text, json an object a line"
    )
    delimiter: str | None = Field(None, description="of text; null: a tab for .tsv and .txt, else a comma")
    header: bool = Field(True, description="text starts with a row of column names")
    quoting: bool | None = Field(
        None,
        description='text may hold "quoted" fields, with delimiters and newlines in them; '
        "null: yes, unless a tab is the delimiter",
    )

    @field_validator("path", mode="before")
    @classmethod
    def _as_list(cls, path: object) -> object:
        return [path] if isinstance(path, str) else path

    @field_validator("delimiter")
    @classmethod
    def _one_byte(cls, delimiter: str | None) -> str | None:
        if delimiter is not None and len(delimiter.encode()) != 1:
            raise ValueError(f"expected one character of ASCII, found {delimiter!r}")
        return delimiter

    def parts(self) -> dict[str, Column]:
        """Which column is which part of an edge, or an entity's id."""
        raise NotImplementedError


class EntityTableConfig(FilesConfig):
    """A table of entities of one type: they are indexed even where no edge has them."""

    type: TypeName
    id: Column = Field(description="column of raw ids: its name, or its number from 0")

    def parts(self) -> dict[str, Column]:
        """The column of raw ids."""
        return {"id": self.id}


class TableConfig(FilesConfig):
    """A table of edges: which columns make an edge."""

    lhs: Column = Field(description="column of the left-hand side: its name, or its number from 0")
    rhs: Column = Field(description="column of the right-hand side")
    relation: Name | None = Field(None, description="the relation of every row")
    relation_column: Column | None = Field(None, description="column that names each row's relation")
    weight: Column | None = Field(None, description="column of edge weights; null: every edge weighs 1")
    split: Name = Field(TRAIN_SPLIT, description="the split that the edges belong to")
    feature_delimiter: Annotated[str, Field(min_length=1)] = Field(
        " ", description="separates the features of a featurized entity, where a column holds them as text"
    )

    def parts(self) -> dict[str, Column]:
        """Which column is which part of an edge."""
        named = {"lhs": self.lhs, "rhs": self.rhs, "relation": self.relation_column, "weight": self.weight}
        return {part: column for part, column in named.items() if column is not None}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.relation is None) == (self.relation_column is None):
            found = "neither" if self.relation is None else "both"
            raise ValueError(
                f"expected one of relation (the same for every row) and relation_column, found {found}"
            )
        named = list(self.parts().values())
        twice = next((column for column in named if named.count(column) > 1), None)
        if twice is not None:
            raise ValueError(f"column {twice!r} is named twice; every part of an edge has its own column")
        return self


Table = TableConfig | EntityTableConfig


class EtlConfig(Section):
    """Settings of the stage. None of the memory settings changes what comes out."""

    tables: Annotated[tuple[TableConfig, ...], Field(min_length=1, strict=False)]
    entities: Annotated[tuple[EntityTableConfig, ...], Field(strict=False)] = Field(
        (), description="tables of entities, isolated ones included"
    )
    holdout: dict[Name, Annotated[float, Field(ge=0, lt=1)]] = Field(
        default_factory=dict,
        description="split -> fraction of the train split's edges that it takes; equal edges stay together",
    )
    min_entity_count: Count | dict[TypeName, Count] = Field(
        0, description="entities with fewer train edges are left out with their edges; a number, or by type"
    )
    min_relation_count: Count = Field(0, description="relations with fewer train edges are left out")
    duplicates: KeepOrDrop = Field("keep", description="drop: of equal edges of a split the first stays")
    self_loops: KeepOrDrop = Field("keep", description="drop: rows with the same entity at both ends")
    on_bad_row: Literal["fail", "quarantine"] = Field(
        "fail", description="a row that cannot become an edge ends the run, or goes to a table of its own"
    )
    quarantine_path: str | None = Field(None, description="folder of that table; null: under `output`")
    max_bad_fraction: Fraction = Field(0.01, description="of all rows; with more bad ones the run fails")
    previous_entity_path: str | None = Field(
        None, description="entities of an earlier run: they keep their indices, new ones come after them"
    )
    graphstorm_maps: bool = Field(False, description="also write raw_id_mappings/ as GraphStorm has them")
    chunk_rows: Positive = Field(
        2_000_000, description="rows encoded at once: about 0.35 GiB + 0.1 GiB per million rows"
    )
    index_bytes: Positive = Field(512 << 20, description="memory for ordering the ids of one partition")
    merge_bytes: Positive = Field(
        256 << 20, description="edges that one task gathers into bucket files at once"
    )
    spill_compression: Compression | Literal["auto"] = Field(
        "auto", description="of the ids and codes in the work folder; auto: none on local disks, else lz4"
    )
    entity_names: bool = Field(False, description="also write PBG's entity_names JSON files")
    work_replication: Positive = Field(2, description="copies of intermediate files on HDFS")
    work_path: str | None = Field(
        None, description="folder for intermediate files, reached by all workers; null: beside the entities"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if TRAIN_SPLIT in self.holdout:
            raise ValueError(f"holdout.{TRAIN_SPLIT}: the other splits are taken out of it; name those only")
        if sum(self.holdout.values()) >= 1:
            raise ValueError("holdout: the fractions add up to 1 or more, which leaves no edge to train on")
        return self

    def min_count(self, entity_type: str) -> int:
        """Train edges that an entity of the type needs."""
        counts = self.min_entity_count
        return counts if isinstance(counts, int) else counts.get(entity_type, 0)

    def splits(self) -> tuple[str, ...]:
        """Names of all splits, train first, the others in the order in which the section names them."""
        named = [table.split for table in self.tables]
        return tuple(dict.fromkeys([TRAIN_SPLIT, *self.holdout, *named]))
