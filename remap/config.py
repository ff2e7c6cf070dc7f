"""The section `remap` of the configuration."""

from typing import Annotated

from pydantic import Field

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
        "none", description="none is the fastest; zstd takes about 13 % off, at about 60 % of the speed"
    )
    checkpoint_version: Positive | None = Field(
        None, description="a committed version, the latest or one that was preserved; null: the latest"
    )
