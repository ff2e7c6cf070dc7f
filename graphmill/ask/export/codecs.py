"""Codecs: float32 vectors to fewer bytes, and back. An index of faiss (QT_8bit) can hold the codes of int8.

Source: docs/how_to/export.md. Shapes: N vectors, D dimension, M codes of a vector, K centroids of a piece.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from graphmill.ask.export.settings import Precision
from graphmill.checkpoints import Floats
from graphmill.errors import FormatError

PRECISIONS: tuple[Precision, ...] = get_args(Precision)

NUM_CENTROIDS = 256
SCALE_BYTES = 2
_STEPS = 255
_MIDDLE = 128.5  # of the first step, as int8 is from -128 on
_LARGEST_HALF = 65504.0

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class EncodedVectors:
    """Encoded vectors: numbers or codes [N, W], and a scale of each row, float16 [N], or None."""

    values_NW: Array
    scale_N: Array | None = None


class Codec(ABC):
    """Encodes vectors of one entity type.

    Attributes:
        precision: its name.
        width: numbers or codes of a vector.
        dtype: type of the numbers or codes.
        has_scale: whether each row has a scale.
    """

    has_scale = False

    def __init__(self, precision: Precision, width: int, dtype: npt.DTypeLike) -> None:
        self.precision, self.width, self.dtype = precision, width, np.dtype(dtype)

    @abstractmethod
    def encode(self, vectors_ND: Floats) -> EncodedVectors:
        """Encode vectors; a number that is too large for the codec is a FormatError."""

    @abstractmethod
    def decode(self, encoded: EncodedVectors) -> Floats:
        """Decode vectors, float32 [N, D]."""

    def tables(self) -> Mapping[str, Array]:
        """The tables that a reader needs, by name."""
        return {}


class FloatCodec(Codec):
    """Stores numbers as float32 or float16, which have the names of their types."""

    def __init__(self, precision: Precision, dimension: int) -> None:
        super().__init__(precision, dimension, precision)

    def encode(self, vectors_ND: Floats) -> EncodedVectors:
        """Round to the type; refuses numbers that float16 cannot hold."""
        if self.precision == "float16" and vectors_ND.size and np.abs(vectors_ND).max() > _LARGEST_HALF:
            raise FormatError(
                f"--precision float16: expected numbers up to {_LARGEST_HALF:g}, found "
                f"{np.abs(vectors_ND).max():g}; take --precision float32"
            )
        return EncodedVectors(vectors_ND.astype(self.dtype, copy=False))

    def decode(self, encoded: EncodedVectors) -> Floats:
        """Widen to float32."""
        return encoded.values_NW.astype(np.float32, copy=False)


class Int8Codec(Codec):
    """Stores a step of each dimension's range: number = scale x step + offset, both float32 [D]."""

    def __init__(self, scale_D: Floats, offset_D: Floats) -> None:
        super().__init__("int8", len(scale_D), np.int8)
        self.scale_D, self.offset_D = scale_D, offset_D

    @classmethod
    def of_range(cls, low_D: Floats, range_D: Floats) -> "Int8Codec":
        """Cut ranges into steps; a number is decoded as the middle of its step."""
        scale_D = range_D / np.float32(_STEPS)
        return cls(scale_D, low_D + scale_D * np.float32(_MIDDLE))

    @property
    def ranges(self) -> Floats:
        """Length of each range, [D]."""
        return self.scale_D * np.float32(_STEPS)

    @property
    def lows(self) -> Floats:
        """Begin of each range, [D]."""
        return self.offset_D - self.scale_D * np.float32(_MIDDLE)

    def encode(self, vectors_ND: Floats) -> EncodedVectors:
        """Find the step of each number."""
        divisor_D = np.where(self.scale_D > 0, self.scale_D, np.float32(1))
        step_ND = np.floor((vectors_ND - self.lows) / divisor_D)
        return EncodedVectors((np.clip(step_ND, 0, _STEPS) - 128).astype(np.int8))

    def decode(self, encoded: EncodedVectors) -> Floats:
        """Take the middle of each step."""
        vectors_ND: Floats = encoded.values_NW.astype(np.float32) * self.scale_D + self.offset_D
        return vectors_ND

    def tables(self) -> Mapping[str, Array]:
        """`scales`, float32 [2, D]: scale and offset of each dimension."""
        return {"scales": np.stack([self.scale_D, self.offset_D])}


class PqCodec(Codec):
    """Stores the nearest centroid of each piece; `centroids_KD` holds the pieces side by side (float16)."""

    def __init__(self, centroids_KD: Array, num_codes: int, has_scale: bool) -> None:
        super().__init__("pq", num_codes, np.uint8)
        self.centroids_KD, self.has_scale = centroids_KD, has_scale

    @property
    def bounds(self) -> list[int]:
        """First dimension of each piece, and D."""
        return bounds_of(self.centroids_KD.shape[1], self.width)

    def encode(self, vectors_ND: Floats) -> EncodedVectors:
        """Find the nearest centroids, and the scale that keeps the length."""
        centroids_KD = self.centroids_KD.astype(np.float32)
        codes_NM = np.empty((len(vectors_ND), self.width), np.uint8)
        for piece, (first, stop) in enumerate(pairwise(self.bounds)):
            codes_NM[:, piece] = nearest(vectors_ND[:, first:stop], centroids_KD[:, first:stop])
        if not self.has_scale:
            return EncodedVectors(codes_NM)
        length_N = np.linalg.norm(self.decode(EncodedVectors(codes_NM)), axis=1)
        scale_N = np.linalg.norm(vectors_ND, axis=1) / np.where(length_N > 0, length_N, 1)
        return EncodedVectors(codes_NM, np.minimum(scale_N, _LARGEST_HALF).astype(np.float16))

    def decode(self, encoded: EncodedVectors) -> Floats:
        """Look the codes up, and scale."""
        dimension = self.centroids_KD.shape[1]
        piece_D = piece_of(dimension, self.width)
        # Row by row of the table's columns: numpy gathers [N, D] at once.
        unit_ND = self.centroids_KD[encoded.values_NW[:, piece_D], np.arange(dimension)].astype(np.float32)
        return unit_ND if encoded.scale_N is None else unit_ND * encoded.scale_N.astype(np.float32)[:, None]

    def tables(self) -> Mapping[str, Array]:
        """`centroids`, float16 [K, D]."""
        return {"centroids": self.centroids_KD}


def num_codes_of(dimension: int, num_bytes: int | None, *, has_scale: bool) -> int:
    """Number of codes of a vector that has `num_bytes` (default: D / 4, a sixteenth of float32)."""
    num_bytes = dimension // 4 if num_bytes is None else num_bytes
    return min(dimension, max(1, num_bytes - (SCALE_BYTES if has_scale else 0)))


def piece_of(dimension: int, num_codes: int) -> npt.NDArray[np.int64]:
    """Number of the piece of each dimension, [D]."""
    piece_D: npt.NDArray[np.int64] = np.arange(dimension) * num_codes // dimension
    return piece_D


def bounds_of(dimension: int, num_codes: int) -> list[int]:
    """First dimension of each piece, and D: [M + 1]."""
    piece_D = piece_of(dimension, num_codes)
    return [*np.searchsorted(piece_D, np.arange(num_codes)).tolist(), dimension]


def nearest(vectors_Nd: Floats, centroids_Kd: Floats) -> npt.NDArray[np.intp]:
    """Number of the nearest centroid of each vector, [N]; the first of several."""
    half_K = np.square(centroids_Kd).sum(1) / 2
    number_N: npt.NDArray[np.intp] = (half_K - vectors_Nd @ centroids_Kd.T).argmin(1)
    return number_N
