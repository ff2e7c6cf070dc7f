"""The section `remap` of the configuration."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from graphmill.config import Name, Positive, Section
from graphmill.formats.remapped import Compression


class RemapConfig(Section):
    """What is remapped, and how it is written."""

    entity_types: Annotated[tuple[Name, ...], Field(strict=False, min_length=1)] | None = Field(
        None, description="entity types to remap; null: all"
    )
    batch_rows: Positive = Field(
        65536, description="rows in memory at once in each task, and rows of a parquet row group"
    )
    compression: Compression = Field(
        "none", description="none is the fastest; zstd takes about 13 % off, and six times as long to write"
    )
    ids_path: str | None = Field(
        None, description="remap these alone: a parquet file with raw ids in its first column of strings"
    )
    output_format: Literal["parquet", "csv"] = Field("parquet", description="csv: vectors as a;b;c")
    output_delimiter: Annotated[str, Field(pattern=r"^[\t !#-~]$")] = Field(",", description="of CSV")
    vectors: Literal["fixed_size_list", "list"] = Field(
        "fixed_size_list", description="Arrow type of the vectors in parquet; list is what GraphStorm writes"
    )
    column_names: dict[Literal["id", "type", "embedding"], str] = Field(
        default_factory=dict, description="new names of columns"
    )
    rows_per_file: Positive | None = Field(
        None, description="rows of a file: part-{partition}_{number}; null: one file a partition"
    )
    relations: bool = Field(
        False, description="also write the relations' parameters, to _relations.parquet in the same folder"
    )
    allow_non_finite: bool = Field(
        False, description="write NaN and infinity too; false: one in the checkpoint is an error"
    )
    checkpoint_version: Positive | None = Field(
        None, description="a committed version, the latest or one that was preserved; null: the latest"
    )

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        names = [self.column_names.get(name, name) for name in ("id", "type", "embedding")]
        if "" in names or len(set(names)) < len(names):
            raise ValueError(f"column_names: expected three different names, found {', '.join(names)}")
        return self

    @property
    def is_standard(self) -> bool:
        """Whether the output is what docs/formats/embeddings.md says, a file a partition."""
        chosen = (self.output_format, self.vectors, self.column_names, self.rows_per_file, self.ids_path)
        return chosen == ("parquet", "fixed_size_list", {}, None, None)
