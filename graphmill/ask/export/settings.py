"""Options of `graphmill export`."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from graphmill.config.section import Flag, Section
from graphmill.config.values import Strings

Precision = Literal["float32", "float16", "int8", "pq"]
FileFormat = Literal["parquet", "npy", "arrow", "faiss", "word2vec", "tensorboard-projector"]


def _names(given: Any) -> Any:
    """Split lists of names, NAME,NAME."""
    words = (word.strip() for text in given for word in text.split(","))
    return tuple(dict.fromkeys(filter(None, words)))


class ExportOptions(Section):
    """Form of an export."""

    precision: Precision = Field(
        "float32",
        description="float16: half the bytes; int8: a quarter; pq: a sixteenth (product quantisation).",
    )
    format: FileFormat = Field(
        "parquet", description="Tables (parquet, npy, arrow), an index of faiss, or text."
    )
    types: Annotated[Strings, BeforeValidator(_names), Flag(metavar="NAME,...")] = Field(
        (), description="Entity types (default: all)."
    )
    num_bytes: Annotated[int | None, Flag("--pq-bytes")] = Field(
        None,
        ge=3,
        description="Bytes of a vector with --precision pq (default: D / 4, a sixteenth of float32).",
    )
    limit: int = Field(
        10_000, ge=1, description="Ids of a type for tensorboard-projector, those with most edges first."
    )
    escape_ids: bool = Field(False, description="Write white space in ids as %20, for word2vec.")
    is_measured: Annotated[bool, Flag("--no-loss")] = Field(
        True, description="Do not measure how much worse the smaller vectors rank."
    )
