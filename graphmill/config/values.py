"""Types of single values in a configuration, and how names are checked."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from graphmill import storage
from graphmill.model import built_in, registry

_NAME = r"^[^./\s\x00-\x1f\x7f][^./\x00-\x1f\x7f]*$"
_MAX_NAME_BYTES = 200


def _fits_file_name(name: str) -> str:
    if not re.fullmatch(_NAME, name):
        raise PydanticCustomError("name", "expected a name: no dot, slash, control character, leading space")
    if (size := len(name.encode(errors="replace"))) > _MAX_NAME_BYTES:
        raise ValueError(f"expected a name of up to {_MAX_NAME_BYTES} bytes, found {size}: {name[:40]!r}...")
    return name


def bytes_of(size: str) -> int:
    """Read a size such as 4GiB; a ValueError says what was expected."""
    from dask.utils import parse_bytes  # a tenth of a second that most commands do without

    try:
        return int(parse_bytes(size))
    except (ValueError, OverflowError) as error:  # 1e999GiB
        raise ValueError(f"expected a size as 4GiB, found {size!r}") from error


Name = Annotated[
    str,
    Field(
        json_schema_extra={"pattern": _NAME},
        description="Without dots, slashes and control characters: names become file names.",
    ),
    AfterValidator(_fits_file_name),
]
TypeName = Annotated[Name, Field(pattern=r"^[^:]*$", description="Without colons, which HDFS refuses.")]
RelationName = Annotated[
    str, Field(min_length=1, description="Any text: `storage.file_name` makes file names.")
]
Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[int, Field(gt=0, lt=2**63)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
AbsolutePath = Annotated[str, AfterValidator(storage.absolute)]  # workers have other current folders
Strings = Annotated[tuple[str, ...], Field(strict=False)]


# Names: built-in ones, or those of plug-ins, which docs/how_to/plug_ins.md explains.
OperatorName = Annotated[
    Literal[*built_in.OPERATORS] | str,  # type: ignore[valid-type]
    AfterValidator(registry.check_operator),
]
ComparatorName = Annotated[
    Literal[*built_in.COMPARATORS] | str,  # type: ignore[valid-type]
    AfterValidator(registry.COMPARATORS.check),
]
LossName = Annotated[
    Literal[*built_in.LOSSES] | str,  # type: ignore[valid-type]
    AfterValidator(registry.LOSS_FUNCTIONS.check),
]
RegularizerName = Annotated[Literal["N3"] | str, AfterValidator(registry.REGULARIZERS.check)]
