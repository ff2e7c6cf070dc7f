"""The calibration of a checkpoint: the numbers that turn scores of answers into probabilities.

    calibration.json, beside run.json
        format_version      1
        checkpoint_version  version whose scores it is for
        checkpoint          checksum of that version's files; null for a checkpoint without checksums
        split               held-out edges that it was fitted on
        temperature         as in graphmill.model.calibration
        pooled              [slope, bias] of all answers, for relations without such edges
        relations           {name: {side of the answers: [slope, bias]}}
        checksum            of all that is above

The file appears whole, or not at all. Source: docs/how_to/predict.md.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from graphmill import storage
from graphmill.errors import FormatError, NotFoundError
from graphmill.model.calibration import Line, Scale
from graphmill.storage import checksums
from graphmill.vocab import Side

NAME = "calibration.json"
FORMAT_VERSION = 1
REMEDY = "hold a split `valid` out (etl.holdout, evaluate.calibrate), and run `graphmill evaluate` after etl"


@dataclass(frozen=True)
class Calibration:
    """The content of the file."""

    checkpoint_version: int
    checkpoint: str | None
    split: str
    temperature: float
    pooled: Line
    relations: Mapping[str, Mapping[Side, Line]]

    def scale(self, relation: str, side: Side) -> Scale:
        """Scale of a relation and the side of its answers."""
        return Scale(self.temperature, self.relations.get(relation, {}).get(side, self.pooled))


_CONTENT = TypeAdapter(Calibration)


def uri_beside(record_uri: str) -> str:
    """Place of the file beside run.json."""
    return storage.join(storage.parent(record_uri), NAME)


def write(uri: str, calibration: Calibration) -> None:
    """Write the file."""
    content = {"format_version": FORMAT_VERSION} | asdict(calibration)
    storage.write_json(uri, content | {"checksum": _checksum(content)}, indent=1)


def read(uri: str, checkpoint_version: int, checkpoint: str | None) -> Calibration:
    """Read the calibration of a version; refuse one of files with another checksum than `checkpoint`."""
    if not storage.exists(uri):
        raise NotFoundError(f"{uri}: there is no calibration; {REMEDY}")
    content = storage.read_json(uri)
    expected = content.pop("checksum", None)
    if content.get("format_version") != FORMAT_VERSION or expected != _checksum(content):
        raise FormatError(f"{uri}: expected a calibration with its checksum, found another file; {REMEDY}")
    try:
        calibration = _CONTENT.validate_python(content)
    except ValidationError as error:
        raise FormatError(f"{uri}: expected the keys of a calibration, found others; {REMEDY}") from error
    sides = calibration.relations.values()
    lines = [calibration.pooled, *(line for of_side in sides for line in of_side.values())]
    numbers = [calibration.temperature, *(number for line in lines for number in line)]
    is_rising = calibration.temperature > 0 and all(line.slope >= 0 for line in lines)
    if not (is_rising and all(map(math.isfinite, numbers))):
        raise FormatError(f"{uri}: expected finite numbers and no negative slope, found others; {REMEDY}")
    if (calibration.checkpoint_version, calibration.checkpoint) != (checkpoint_version, checkpoint):
        other = "another" if calibration.checkpoint_version == checkpoint_version else "the"
        raise FormatError(
            f"{uri}: expected the calibration of the checkpoint's version {checkpoint_version}, found that "
            f"of {other} version {calibration.checkpoint_version}; {REMEDY}"
        )
    return calibration


def _checksum(content: Mapping[str, Any]) -> str:
    return checksums.of_bytes(json.dumps(content, sort_keys=True).encode())
