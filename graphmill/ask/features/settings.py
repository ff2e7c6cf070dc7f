"""A request to add vectors to a table: the options of `graphmill features`."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from graphmill.config.section import SIZE, Flag, Section
from graphmill.config.values import AbsolutePath


class FeaturesOptions(Section):
    """One request."""

    columns: Mapping[str, str]
    """Type of the ids in each column of ids."""
    components: int | None = Field(
        None, ge=1, description="This many principal components, instead of the vectors."
    )
    similar_to: Annotated[AbsolutePath | None, Flag(metavar="FILE")] = Field(
        None,
        description="Cosines with the vectors of these ids, instead of the vectors: parquet, CSV, or lines "
        "of text.",
    )
    as_columns: bool = Field(False, description="A column for each number, instead of one of lists.")
    prefix: Annotated[str, Flag(metavar="TEXT")] = Field(
        "", description="Beginning of the names of the new columns."
    )
    fold_in: Annotated[tuple[AbsolutePath, ...], Flag(metavar="FILE")] = Field(
        (),
        description="Edges of ids that the run does not know, or a result of `graphmill fold-in`; "
        "repeatable.",
    )
    memory_bytes: Annotated[int, Flag("--task-memory", SIZE)] = Field(
        512 << 20, description="Memory of a task's blocks."
    )

    def stem(self, column: str) -> str:
        """Beginning of the names of the new columns of a column of ids."""
        return self.prefix + (f"{column}_" if len(self.columns) > 1 else "")
