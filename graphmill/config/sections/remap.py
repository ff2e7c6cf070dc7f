"""The sections `remap` and `drift` of the configuration."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from graphmill.config.section import Fixed, Neutral, Section, Tunable
from graphmill.config.values import Name, Positive, TypeName

Compression = Literal["none", "zstd"]


class RemapConfig(Section):
    """The section `remap`."""

    key = "remap"

    entity_types: Fixed[Annotated[tuple[Name, ...], Field(strict=False, min_length=1)] | None] = Field(
        None, description="Entity types to remap; null: all."
    )
    batch_rows: Fixed[Positive] = Field(
        65536, description="Rows per batch in memory, and per row group of a parquet file."
    )
    compression: Fixed[Compression] = Field(
        "none", description="Compression of parquet files; zstd saves about 13 % and takes six times as long."
    )
    ids_path: Fixed[str | None] = Field(
        None, description="File of the raw ids to remap: parquet, CSV, or lines, as for `predict`; null: all."
    )
    output_format: Fixed[Literal["parquet", "csv"]] = Field(
        "parquet", description="Format of the files; csv writes vectors as a;b;c."
    )
    output_delimiter: Fixed[Annotated[str, Field(pattern=r"^[\t !#-~]$")]] = Field(
        ",", description="Delimiter of CSV."
    )
    vectors: Fixed[Literal["fixed_size_list", "list"]] = Field(
        "fixed_size_list", description="Arrow type of the vectors in parquet; GraphStorm writes list."
    )
    column_names: Fixed[dict[Literal["id", "type", "embedding"], str]] = Field(
        default_factory=dict, description="New names of the columns."
    )
    rows_per_file: Fixed[Positive | None] = Field(
        None, description="Rows per file part-{partition}_{number}; null: one file per partition."
    )
    relations: Fixed[bool] = Field(
        False, description="Also write the relations' parameters to _relations.parquet in the same folder."
    )
    allow_non_finite: Fixed[bool] = Field(
        False, description="Write NaN and infinite values; false: such a value stops the run."
    )
    checkpoint_version: Fixed[Positive | None] = Field(
        None, description="Version of the checkpoint to read; null: the one that training ended with."
    )

    align_to: Neutral[str | None] = Field(
        None,
        description="Folder of an earlier run's embeddings. The vectors are turned into their space, by the "
        "orthogonal matrix that suits the ids of both runs best (Procrustes), so that a model trained from "
        "nothing can replace the served one. Cosines and dot products stay; relations do not fit any more.",
    )

    id_maps: Fixed[dict[TypeName, str]] = Field(
        default_factory=dict,
        description="Raw ids of the ids of RecIS' tables, by table: a parquet file or folder with both ids, "
        "or int64 where the raw ids are these integers; empty: raw ids are those of entity_path.",
    )
    id_map_columns: Fixed[Annotated[tuple[str, str], Field(strict=False)] | None] = Field(
        None, description="Columns of raw ids and int64 ids in `id_maps`; null: found by their types."
    )
    leave_out_ids: Fixed[bool] = Field(
        False, description="Leave out ids that `id_maps` cannot translate; false: such an id stops the run."
    )

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        if "" in self.columns or len(set(self.columns)) < len(self.columns):
            raise ValueError(f"column_names: expected three different names, found {', '.join(self.columns)}")
        return self

    @property
    def columns(self) -> list[str]:
        """Names of the columns in the output."""
        names: tuple[Literal["id", "type", "embedding"], ...] = ("id", "type", "embedding")
        return [self.column_names.get(name, name) for name in names]

    @property
    def is_standard(self) -> bool:
        """Tell whether the output is as in docs/formats/embeddings.md, with one file per partition."""
        chosen = (self.output_format, self.vectors, self.column_names, self.rows_per_file, self.ids_path)
        return chosen == ("parquet", "fixed_size_list", {}, None, None)


class DriftConfig(Section):
    """The section `drift`: with it, a pipeline tells how far vectors have moved since the run before."""

    key = "drift"

    before: Neutral[str | None] = Field(
        None, description="Folder of the embeddings of the run before; null: `embeddings` beside init_path."
    )
    max_p10: Tunable[float | None] = Field(
        None,
        ge=0,
        le=2,
        description="Largest drift, 1 - cosine of the two vectors of an id, that a tenth of the ids of a "
        "type may exceed. Beyond it the run ends with exit code 3, unfinished; null: no limit.",
    )
    num_moved: Fixed[Positive] = Field(
        20, description="Ids that moved most, listed for each type in run.json and report.html."
    )
