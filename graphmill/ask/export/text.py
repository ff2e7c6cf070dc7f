"""Text: word2vec's format, as gensim and others load it, and TensorBoard's projector.

    {type}/vectors.txt          word2vec: N D, then an id and its numbers on each line
    {type}/vectors.tsv          projector: a vector on each line
    {type}/metadata.tsv         projector: id and number of training edges of each line
    projector_config.json       for projector.tensorflow.org and its copies: ?config=URL
    projector_config.pbtxt      for TensorBoard: tensorboard --logdir FOLDER

Readers of word2vec cut a line at spaces, so ids with white space are refused, or escaped on demand: a space
is %20, and % is %25 then (`urllib.parse.unquote` gives the id back). A number has the fewest digits that give
it back. A browser holds some ten thousand vectors, so the projector gets the `limit` ids with most edges.

Source: https://github.com/tensorflow/tensorboard/blob/master/tensorboard/plugins/projector.
"""

import json
import re
from collections.abc import Iterator, Sequence
from urllib.parse import quote

import numpy as np

from graphmill import storage
from graphmill.ask.edges import Graph, Piece, degrees_of
from graphmill.ask.export.codecs import Array
from graphmill.ask.export.fitting import Source
from graphmill.config.partitions import all_buckets
from graphmill.errors import ConfigError
from graphmill.storage import Checksums

_SPACE = re.compile(r"[\s\x00-\x1f\x7f]")
_ESCAPED = re.compile(r"[\s\x00-\x1f\x7f%]")
_BREAKS = str.maketrans("\t\r\n", "   ")
_BLOCK = 1 << 12


def write_word2vec(source: Source, _: int, folder: str) -> Checksums:
    """Write a type; return the checksum of its file."""
    checksums: Checksums = {}
    uri = storage.join(folder, source.entity_type, "vectors.txt")
    with storage.atomic_output(uri, is_large=True, checksums=checksums) as stream:
        stream.write(f"{source.table.num_entities} {source.table.dimension}\n".encode())
        for ids, encoded in source.all_batches():
            words = (_word(raw_id, source) for raw_id in ids.to_pylist())
            for word, numbers in zip(words, _lines(encoded.values_NW, " "), strict=True):
                stream.write(f"{word} {numbers}\n".encode())
    return checksums


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


def write_projector(source: Source, _: int, folder: str) -> Checksums:
    """Write a type; return the checksums of its files."""
    checksums: Checksums = {}
    stem = storage.join(folder, source.entity_type)
    config, table = source.table.trained.config, source.table
    pieces = [Piece(path, bucket) for path in config.edge_paths for bucket in all_buckets(config)]
    graph = Graph(config, {table.entity_type: table.num_rows})
    degree_N = degrees_of(graph, table.rows_of(np.arange(table.num_entities)), pieces)
    chosen = np.argsort(-degree_N, kind="stable")[: source.limit]
    vectors_uri, labels_uri = storage.join(stem, "vectors.tsv"), storage.join(stem, "metadata.tsv")
    with storage.atomic_output(vectors_uri, checksums=checksums) as stream:
        for start in range(0, len(chosen), _BLOCK):
            vectors_ND = source.prepare(table.gather(chosen[start : start + _BLOCK]))
            for line in _lines(source.codec.encode(vectors_ND).values_NW, "\t"):
                stream.write(f"{line}\n".encode())
    ascending = np.sort(chosen)
    name_of = dict(zip(ascending.tolist(), table.names(ascending).to_pylist(), strict=True))
    with storage.atomic_output(labels_uri, checksums=checksums) as stream:
        stream.write(b"id\tedges\n")
        for number, degree in zip(chosen.tolist(), degree_N[chosen].tolist(), strict=True):
            stream.write(f"{name_of[number].translate(_BREAKS)}\t{degree}\n".encode())
    return checksums


def finish_projector(folder: str, sources: Sequence[Source]) -> Checksums:
    """Write both lists of the types; return their checksums."""
    listed = [
        {
            "tensorName": source.entity_type,
            "tensorShape": [min(source.limit, source.table.num_entities), source.table.dimension],
            "tensorPath": f"{source.entity_type}/vectors.tsv",
            "metadataPath": f"{source.entity_type}/metadata.tsv",
        }
        for source in sources
    ]
    quoted = [
        {key: json.dumps(value, ensure_ascii=False) for key, value in tensor.items()} for tensor in listed
    ]
    text = "".join(
        f"embeddings {{\n  tensor_name: {tensor['tensorName']}\n  tensor_path: {tensor['tensorPath']}\n"
        f"  metadata_path: {tensor['metadataPath']}\n}}\n"
        for tensor in quoted
    )
    uris = [storage.join(folder, f"projector_config.{ending}") for ending in ("json", "pbtxt")]
    checksums: Checksums = {}
    storage.write_json(uris[0], {"embeddings": listed}, checksums, indent=1, ensure_ascii=False)
    storage.write_text(uris[1], text, checksums)
    return checksums


def _lines(values_ND: Array, separator: str) -> Iterator[str]:
    """Write each row with the fewest digits that give its numbers back, float32 or float16 [N, D]."""
    for row_D in values_ND:
        yield separator.join(row_D.astype("U32").tolist())
