"""TensorBoard's projector: vectors and labels of each type, and the two files that name them.

    {type}/vectors.tsv          a vector on each line
    {type}/metadata.tsv         id and number of training edges of each line
    projector_config.json       for projector.tensorflow.org and its copies: ?config=URL
    projector_config.pbtxt      for TensorBoard: tensorboard --logdir FOLDER

A browser holds some ten thousand vectors, so only the `limit` ids with most edges are written, those first.

Source: https://github.com/tensorflow/tensorboard/blob/master/tensorboard/plugins/projector.
"""

import json
from collections.abc import Sequence

import numpy as np

from graphmill import storage
from graphmill.ask.edges import Graph, Numbers, Piece, degrees_of
from graphmill.ask.export.formats.word2vec import as_lines
from graphmill.ask.export.source import Source
from graphmill.config.partitions import all_buckets
from graphmill.storage import Checksums

_BREAKS = str.maketrans("\t\r\n", "   ")
_BLOCK = 1 << 12


def write(source: Source, _: int, folder: str) -> Checksums:
    """Write a type; return the checksums of its files."""
    checksums: Checksums = {}
    stem = storage.join(folder, source.entity_type)
    degree_N = degrees(source)
    chosen = np.argsort(-degree_N, kind="stable")[: source.limit]
    vectors_uri, labels_uri = storage.join(stem, "vectors.tsv"), storage.join(stem, "metadata.tsv")
    with storage.atomic_output(vectors_uri, checksums=checksums) as stream:
        for start in range(0, len(chosen), _BLOCK):
            vectors_ND = source.prepare(source.table.gather(chosen[start : start + _BLOCK]))
            for line in as_lines(source.codec.encode(vectors_ND).values_NW, "\t"):
                stream.write(f"{line}\n".encode())
    ascending = np.sort(chosen)
    name_of = dict(zip(ascending.tolist(), source.table.names(ascending).to_pylist(), strict=True))
    with storage.atomic_output(labels_uri, checksums=checksums) as stream:
        stream.write(b"id\tedges\n")
        for number, degree in zip(chosen.tolist(), degree_N[chosen].tolist(), strict=True):
            stream.write(f"{name_of[number].translate(_BREAKS)}\t{degree}\n".encode())
    return checksums


def degrees(source: Source) -> Numbers:
    """Number of training edges of each entity of the type; 0 where the buckets are not there any more."""
    config, table = source.config, source.table
    rows = table.rows_of(np.arange(table.num_entities))
    pieces = [Piece(path, bucket) for path in config.edge_paths for bucket in all_buckets(config)]
    return degrees_of(Graph(config, {table.entity_type: table.num_rows}), rows, pieces)


def finish(folder: str, sources: Sequence[Source]) -> Checksums:
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
    listed_json = json.dumps({"embeddings": listed}, indent=1, ensure_ascii=False) + "\n"
    storage.write_text(uris[0], listed_json, checksums)
    storage.write_text(uris[1], text, checksums)
    return checksums
