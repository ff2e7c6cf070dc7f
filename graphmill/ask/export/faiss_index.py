"""Faiss: one index for each type, and the ids of its rows: row 0 of ids.parquet is number 0 of the index.

    {type}/vectors.faiss    IndexFlat, IndexScalarQuantizer (fp16, 8bit) or IndexPQ
    {type}/ids.parquet      column id

The metric is the inner product for the comparators dot and cos, else the squared distance. For cos the
vectors have length 1. The index of a type is in the memory of one task.

Source: https://github.com/facebookresearch/faiss/wiki.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from graphmill import storage
from graphmill.ask.export.codecs import Array, Codec, EncodedVectors, Int8Codec, PqCodec, piece_of
from graphmill.ask.export.fitting import Source
from graphmill.ask.export.tables import IDS
from graphmill.errors import optional
from graphmill.formats.parquet import new_file
from graphmill.model.comparators import is_dot
from graphmill.storage import Checksums


def write(source: Source, _: int, folder: str) -> Checksums:
    """Write the index of a type; return the checksums of its files."""
    checksums: Checksums = {}
    faiss = import_faiss()
    stem = storage.join(folder, source.entity_type)
    uri, ids_uri = storage.join(stem, "vectors.faiss"), storage.join(stem, "ids.parquet")
    is_product = is_dot(source.table.trained.config.comparator, bias=False)
    metric = faiss.METRIC_INNER_PRODUCT if is_product else faiss.METRIC_L2
    index, codes = _new_index(faiss, source.codec, metric)
    with new_file(ids_uri, IDS, checksums, is_large=True, compression="zstd") as table:
        for ids, encoded in source.all_batches():
            table.write_table(pa.table([ids.cast(pa.string())], schema=IDS))
            codes.add_sa_codes(_bytes_of(source.codec, encoded))
    if index is not codes:
        index.ntotal = codes.ntotal
    with storage.atomic_output(uri, is_large=True, checksums=checksums) as stream:
        faiss.write_index(index, faiss.PyCallbackIOWriter(stream.write))
    return checksums


def import_faiss() -> Any:
    """Import faiss; a ConfigError tells how to install it."""
    return optional(
        "faiss",
        "--format faiss: needs faiss, which is not installed: pip install 'graphmill[neighbors]', on the "
        "workers too",
    )


def _new_index(faiss: Any, codec: Codec, metric: int) -> tuple[Any, Any]:
    """An index without vectors, and the index in it that holds the codes."""
    if isinstance(codec, PqCodec):
        return _new_pq(faiss, codec, metric)
    if codec.precision == "float32":
        index = faiss.IndexFlat(codec.width, metric)
        return index, index
    kinds = {"int8": faiss.ScalarQuantizer.QT_8bit, "float16": faiss.ScalarQuantizer.QT_fp16}
    index = faiss.IndexScalarQuantizer(codec.width, kinds[codec.precision], metric)
    if isinstance(codec, Int8Codec):
        trained = np.concatenate([codec.lows, codec.ranges])
        faiss.copy_array_to_vector(trained.astype(np.float32), index.sq.trained)
    index.is_trained = True
    return index, index


def _new_pq(faiss: Any, codec: PqCodec, metric: int) -> tuple[Any, Any]:
    """An IndexPQ; its pieces have one length, so shorter ones get a zero in front of it."""
    dimension, num_codes = codec.centroids_KD.shape[1], codec.width
    piece_D = piece_of(dimension, num_codes)
    widths_M = np.bincount(piece_D)
    width = int(widths_M.max())
    place_D = piece_D * width + np.arange(dimension) - np.array(codec.bounds)[piece_D]
    codes = faiss.IndexPQ(num_codes * width, num_codes, 8, metric)
    padded = np.zeros((256, num_codes * width), np.float32)
    padded[: len(codec.centroids_KD), place_D] = codec.centroids_KD
    by_piece = padded.reshape(256, num_codes, width).transpose(1, 0, 2)
    faiss.copy_array_to_vector(np.ascontiguousarray(by_piece).ravel(), codes.pq.centroids)
    codes.is_trained = True
    if num_codes * width == dimension:
        return codes, codes
    remap = faiss.RemapDimensionsTransform(dimension, num_codes * width, False)
    source_of = np.full(num_codes * width, -1, np.int32)
    source_of[place_D] = np.arange(dimension)
    faiss.copy_array_to_vector(source_of, remap.map)
    index = faiss.IndexPreTransform(remap, codes)
    index.is_trained = True
    return index, codes


def _bytes_of(codec: Codec, encoded: EncodedVectors) -> Array:
    """The codes as faiss stores them, uint8 [N, bytes of a vector]."""
    values_NW = encoded.values_NW
    if codec.precision == "int8":
        return (values_NW.astype(np.int16) + 128).astype(np.uint8)
    return np.ascontiguousarray(values_NW).view(np.uint8).reshape(len(values_NW), -1)
