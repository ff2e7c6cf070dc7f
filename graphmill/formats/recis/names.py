"""RecIS' names of files, blocks and slices, and the shard that owns an id.

fc.weight^                              a dense tensor's key: its name, a caret, a space
user.embedding/part_0_2                 a block: {table}.{slot}/part_{shard}_{shards}
user@embedding^00000@32768@65536        its name in tensorkey.json: {table}@{slot}^{begin}@{end}@{size}
model-000000-of-000002.safetensors      file number shard * writers + writer, of shards * writers
"""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from graphmill.errors import FormatError

INDEX = "index"
TENSOR_KEYS = "tensorkey.json"
MULTI_SHARD = "torch_rank_weights_embs_table_multi_shard.json"

ID_SLOT = "id"
EMBEDDING_SLOT = "embedding"
NUM_HASH_SLOTS = 65536

_DENSE_END = "^ "
_SLICE = re.compile(r"^(\d+)@(\d+)@(\d+)$")

Numbers = npt.NDArray[np.int64]


class UnknownTensorError(FormatError, KeyError):
    """The checkpoint has no tensor of that name."""

    __str__ = Exception.__str__  # a KeyError quotes its message


@dataclass(frozen=True, order=True)
class Slice:
    """The hash slots [begin, end) of `size`, whose ids a shard owns."""

    begin: int
    end: int
    size: int = NUM_HASH_SLOTS

    def __str__(self) -> str:
        width = len(str(self.size))
        return f"{self.begin:0{width}}@{self.end:0{width}}@{self.size}"

    def owns(self, ids: Numbers) -> npt.NDArray[np.bool_]:
        """Mask of the ids that lie in the slice."""
        slots = hash_slot(ids)
        return (slots >= self.begin) & (slots < self.end)

    def intersects(self, other: "Slice") -> bool:
        """Whether an id may lie in both."""
        return self.begin < other.end and other.begin < self.end


def hash_slot(ids: Any) -> npt.NDArray[np.uint64]:
    """uint64(id) % 65536 of each id."""
    slots: npt.NDArray[np.uint64] = np.asarray(ids, np.int64).view(np.uint64) % np.uint64(NUM_HASH_SLOTS)
    return slots


def slice_of(shard_index: int, shard_num: int) -> Slice:
    """The contiguous slots of one shard; the first 65536 % shard_num shards have one more.

    Raises:
        FormatError: there is no such shard.
    """
    if not 0 <= shard_index < shard_num <= NUM_HASH_SLOTS:
        raise FormatError(
            f"shard {shard_index} of {shard_num}: expected 0 <= shard_index < shard_num <= {NUM_HASH_SLOTS}"
        )
    share, rest = divmod(NUM_HASH_SLOTS, shard_num)
    begin = shard_index * share + min(shard_index, rest)
    return Slice(begin, begin + share + (shard_index < rest))


def parsed_slice(text: str, where: str) -> Slice:
    """Parse a slice `begin@end@size`.

    Raises:
        FormatError: the text is no slice, or of another size: other shards would own the ids.
    """
    match = _SLICE.match(text)
    if match is None:
        raise FormatError(f"{where}: expected a slice begin@end@size, found {text!r}")
    found = Slice(*map(int, match.groups()))
    if found.size != NUM_HASH_SLOTS:
        raise FormatError(
            f"{where}: the ids are spread over {found.size} hash slots; this reader knows {NUM_HASH_SLOTS}"
        )
    if not 0 <= found.begin <= found.end <= found.size:
        raise FormatError(f"{where}: expected a slice of {found.size}, found {text!r}")
    return found


def file_name(number: int, total: int) -> str:
    """Name of a file of tensors."""
    return f"model-{number:06d}-of-{total:06d}.safetensors"


def dense_key(name: str) -> str:
    """Key of a dense tensor."""
    return name + _DENSE_END


def dense_name(key: str) -> str | None:
    """Name of the dense tensor of that key, or None for a block."""
    return key.removesuffix(_DENSE_END) if key.endswith(_DENSE_END) else None


def block_key(table: str, slot: str, shard_index: int, shard_num: int) -> str:
    """Key of one shard's rows of a slot."""
    return f"{table}.{slot}/part_{shard_index}_{shard_num}"


def tensor_name(table: str, slot: str) -> str:
    """Name of a slot over all shards."""
    return f"{table}@{slot}"


def table_and_slot(name: str) -> tuple[str, str] | None:
    """Table and slot of such a name, or None for a dense tensor; a table's name may contain @."""
    table, sign, slot = name.rpartition("@")
    return (table, slot) if sign else None
