"""Word2vec's text format: one file for each type, {type}/vectors.txt, as gensim and others load it.

    N D
    id number number ...

Readers cut a line at spaces, so ids with white space are refused, or escaped on demand: a space is %20, and %
is %25 then (`urllib.parse.unquote` gives the id back). A number has the fewest digits that give it back.
"""

import re
from collections.abc import Iterator
from urllib.parse import quote

from graphmill import storage
from graphmill.ask.export.codecs import Array
from graphmill.ask.export.source import Source
from graphmill.errors import ConfigError
from graphmill.storage import Checksums

_SPACE = re.compile(r"[\s\x00-\x1f\x7f]")
_ESCAPED = re.compile(r"[\s\x00-\x1f\x7f%]")


def write(source: Source, _: int, folder: str) -> Checksums:
    """Write a type; return the checksum of its file."""
    checksums: Checksums = {}
    uri = storage.join(folder, source.entity_type, "vectors.txt")
    with storage.atomic_output(uri, is_large=True, checksums=checksums) as stream:
        stream.write(f"{source.table.num_entities} {source.table.dimension}\n".encode())
        for ids, encoded in source.all_batches():
            words = (_word(raw_id, source) for raw_id in ids.to_pylist())
            for word, numbers in zip(words, as_lines(encoded.values_NW, " "), strict=True):
                stream.write(f"{word} {numbers}\n".encode())
    return checksums


def as_lines(values_ND: Array, separator: str) -> Iterator[str]:
    """Write each row with the fewest digits that give its numbers back, float32 or float16 [N, D]."""
    for row_D in values_ND:
        yield separator.join(row_D.astype("U32").tolist())


def _word(raw_id: str, source: Source) -> str:
    if source.escape_ids and raw_id:
        return _ESCAPED.sub(lambda match: quote(match[0], safe=""), raw_id)
    if not raw_id or _SPACE.search(raw_id):
        raise ConfigError(
            f"--format word2vec: {source.entity_type!r} has the id {raw_id!r}; readers cut lines at "
            "spaces, so expected ids without white space; give --escape-ids (an empty id has no remedy), or "
            "take another format"
        )
    return raw_id
