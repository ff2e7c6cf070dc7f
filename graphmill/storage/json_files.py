"""Reading of JSON; every mistake in it is a `FormatError` that names the file."""

import json
from typing import Any

from graphmill.errors import FormatError
from graphmill.storage import fs

_NAMES: dict[type, str] = {dict: "object", list: "list"}


def read_json(uri: str, kind: type = dict) -> Any:
    """The content of the JSON file at `uri`; raises like `json_in`, and NotFoundError."""
    return json_in(fs.read_bytes(uri, fs.MAX_TEXT_BYTES), uri, kind)


def json_in(text: str | bytes, where: str, kind: type = dict) -> Any:
    """The content of JSON text from the place `where`, which must be a `kind`.

    Raises:
        FormatError: the content is something else.
    """
    expected = f"{where}: expected a JSON {_NAMES.get(kind, kind.__name__)}"
    try:
        content = json.loads(text)
    except RecursionError as error:
        raise FormatError(f"{expected}, found lists or objects nested too deep") from error
    except ValueError as error:  # no JSON, no UTF-8, an integer of too many digits
        raise FormatError(f"{expected}, found something else: {error}") from error
    if not isinstance(content, kind):
        raise FormatError(f"{expected}, found {type(content).__name__}")
    return content
