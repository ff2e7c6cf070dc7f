"""JSON files that come from others."""

import json
from typing import Any

from graphmill import storage
from graphmill.errors import FormatError


def read_object(uri: str, manifest: storage.Manifest | None = None) -> dict[str, Any]:
    """The JSON object at `uri`.

    Raises:
        NotFoundError: there is no such file.
        FormatError: it is something else, or not what its checksum, where it has one, says.
    """
    return object_in(storage.read_compared(uri, manifest), uri)


def object_in(text: str | bytes, where: str) -> dict[str, Any]:
    """The JSON object that `text` is.

    Raises:
        FormatError: it is something else; `where` says what it was read from.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where}: expected a JSON object, found something else: {error}") from error
    if not isinstance(content, dict):
        raise FormatError(f"{where}: expected a JSON object, found {type(content).__name__}")
    return content
