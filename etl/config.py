"""The section `etl`: which tables hold the edges, and how much memory a task may take."""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from graphmill.config import Name, Positive, Section
from graphmill.vocab import TRAIN_SPLIT

Column = str | Annotated[int, Field(ge=0)]
Format = Literal["auto", "parquet", "csv", "orc"]


class TableConfig(Section):
    """One raw table: where its files are, and which columns make an edge."""

    path: Annotated[tuple[str, ...], Field(min_length=1, strict=False)] = Field(
        description="files, folders or glob patterns, relative to `input`; one, or a list"
    )
    format: Format = Field("auto", description="auto: by the file's suffix; csv is any delimited text")
    delimiter: str | None = Field(None, description="of text; null: a tab for .tsv and .txt, else a comma")
    header: bool = Field(True, description="text starts with a row of column names")
    quoting: bool | None = Field(
        None,
        description='text may hold "quoted" fields, with delimiters and newlines in them; '
        "null: yes, unless a tab is the delimiter",
    )
    lhs: Column = Field(description="column of the left-hand side: its name, or its number from 0")
    rhs: Column = Field(description="column of the right-hand side")
    relation: Name | None = Field(None, description="the relation of every row")
    relation_column: Column | None = Field(None, description="column that names each row's relation")
    weight: Column | None = Field(None, description="column of edge weights; null: every edge weighs 1")
    split: Name = Field(TRAIN_SPLIT, description="the split that the edges belong to")

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

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.relation is None) == (self.relation_column is None):
            found = "neither" if self.relation is None else "both"
            raise ValueError(
                f"expected one of relation (the same for every row) and relation_column, found {found}"
            )
        named = [c for c in (self.lhs, self.rhs, self.relation_column, self.weight) if c is not None]
        twice = next((column for column in named if named.count(column) > 1), None)
        if twice is not None:
            raise ValueError(f"column {twice!r} is named twice; every part of an edge has its own column")
        return self


class EtlConfig(Section):
    """Settings of the stage. None of the memory settings changes what comes out."""

    tables: Annotated[tuple[TableConfig, ...], Field(min_length=1, strict=False)]
    holdout: dict[Name, Annotated[float, Field(ge=0, lt=1)]] = Field(
        default_factory=dict,
        description="split -> fraction of the train split's edges that it takes; equal edges stay together",
    )
    chunk_rows: Positive = Field(
        2_000_000, description="rows encoded at once: about 0.3 GiB + 0.12 GiB per million rows"
    )
    index_bytes: Positive = Field(512 << 20, description="memory for ordering the ids of one partition")
    merge_bytes: Positive = Field(
        256 << 20, description="edges that one task gathers into bucket files at once"
    )
    entity_names: bool = Field(False, description="also write PBG's entity_names JSON files")
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

    def splits(self) -> tuple[str, ...]:
        """Names of all splits, train first, the others in the order in which the section names them."""
        named = [table.split for table in self.tables]
        return tuple(dict.fromkeys([TRAIN_SPLIT, *self.holdout, *named]))
