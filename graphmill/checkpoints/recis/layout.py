"""RecIS' layout: names of tensors, the shard that owns an id, and the JSON files that say where blocks are.

fc.weight^                              a dense tensor's key: its name, a caret, a space
user.embedding/part_0_2                 a block: {table}.{slot}/part_{shard}_{shards}
user@embedding^00000@32768@65536        its name in tensorkey.json: {table}@{slot}^{begin}@{end}@{size}

`index` is written last: a folder without it is no checkpoint.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from graphmill import storage
from graphmill.errors import FormatError, NotFoundError

INDEX = "index"
TENSOR_KEYS = "tensorkey.json"
MULTI_SHARD = "torch_rank_weights_embs_table_multi_shard.json"

RUN_FILE = "checkpoint"

ID_SLOT = "id"
EMBEDDING_SLOT = "embedding"
NUM_HASH_SLOTS = 65536
DENSE_END = "^ "

_SLICE = re.compile(r"^(\d{1,9})@(\d{1,9})@(\d{1,9})$")

Numbers = npt.NDArray[np.int64]


class UnknownTensorError(FormatError, KeyError):
    """The checkpoint has no tensor of that name."""

    __str__ = Exception.__str__  # a KeyError quotes its message


@dataclass(frozen=True, order=True)
class Slice:
    """The hash slots [begin, end) of 65536, whose ids a shard owns."""

    begin: int
    end: int

    def __str__(self) -> str:
        return f"{self.begin:05d}@{self.end:05d}@{NUM_HASH_SLOTS}"

    def owns(self, ids: Numbers) -> npt.NDArray[np.bool_]:
        """Mask of the ids that lie in the slice."""
        slots = hash_slot(ids)
        return (slots >= self.begin) & (slots < self.end)

    def meets(self, other: "Slice") -> bool:
        """Tell whether an id may lie in both slices."""
        return self.begin < other.end and other.begin < self.end


def hash_slot(ids: Any) -> npt.NDArray[np.uint64]:
    """uint64(id) % 65536 of each id."""
    slots: npt.NDArray[np.uint64] = np.asarray(ids, np.int64).view(np.uint64) % np.uint64(NUM_HASH_SLOTS)
    return slots


def slice_of(shard_index: int, shard_num: int) -> Slice:
    """The contiguous slots of one shard; the first 65536 % shard_num shards have one more."""
    if not 0 <= shard_index < shard_num <= NUM_HASH_SLOTS:
        raise FormatError(
            f"shard {shard_index} of {shard_num}: expected 0 <= shard_index < shard_num <= {NUM_HASH_SLOTS}"
        )
    share, rest = divmod(NUM_HASH_SLOTS, shard_num)
    begin = shard_index * share + min(shard_index, rest)
    return Slice(begin, begin + share + (shard_index < rest))


def tensor_name(table: str, slot: str) -> str:
    """Name of a slot over all shards."""
    return f"{table}@{slot}"


@dataclass(frozen=True)
class Stored:
    """A block: its key in a file of tensors, its tensor, and the slots of its ids (None: a dense tensor)."""

    key: str
    file: str
    name: str
    slots: Slice | None


@dataclass
class Index:
    """Content of the JSON files of a checkpoint, or of the note of one shard."""

    block_index: dict[str, int] = field(default_factory=dict)
    """File number of each block."""
    file_index: dict[str, int] = field(default_factory=dict)
    """Number of each file."""
    tensor_keys: dict[str, str] = field(default_factory=dict)
    """`table@slot^slice` of each block of a table."""
    multi_shard: dict[str, dict[str, Any]] = field(default_factory=dict)

    def append(self, other: "Index") -> None:
        """Add the content of the next shard, whose files get the next numbers."""
        first = len(self.file_index)
        self.block_index.update({key: number + first for key, number in other.block_index.items()})
        self.file_index.update({name: number + first for name, number in other.file_index.items()})
        self.tensor_keys.update(other.tensor_keys)
        self.multi_shard.update(other.multi_shard)

    def number_files(self) -> dict[str, str]:
        """Name the files by their numbers; return the new name of each old name."""
        total = len(self.file_index)
        names = {
            name: f"model-{number:06d}-of-{total:06d}.safetensors" for name, number in self.file_index.items()
        }
        self.file_index = {names[name]: number for name, number in self.file_index.items()}
        return names

    def blocks(self, where: str) -> dict[str, list[Stored]]:
        """The blocks of each tensor in the order of slots, by name: `table@slot`, or a dense tensor's."""
        files = {number: name for name, number in self.file_index.items()}
        blocks_of: dict[str, list[Stored]] = {}
        for key, number in self.block_index.items():
            if number not in files:
                raise FormatError(f"{where}: {key!r} lies in file {number}, which file_index does not have")
            name, slots = self._name_and_slots(key, where)
            blocks_of.setdefault(name, []).append(Stored(key, files[number], name, slots))
        for name, blocks in blocks_of.items():
            sliced = sorted(block.slots for block in blocks if block.slots is not None)
            if len(blocks) > 1 and len(sliced) < len(blocks):
                raise FormatError(f"{where}: {name!r} is a dense tensor and a table's slot at once")
            begins, ends = [each.begin for each in sliced], [each.end for each in sliced]
            if sliced and [*begins, NUM_HASH_SLOTS] != [0, *ends]:
                raise FormatError(
                    f"{where}: {name!r}: expected slices that cover all {NUM_HASH_SLOTS} hash slots once, "
                    f"found {', '.join(map(str, sliced[:9]))}: is a shard's file missing?"
                )
            blocks.sort(key=lambda block: block.slots or Slice(0, 0))
        return blocks_of

    def _name_and_slots(self, key: str, where: str) -> tuple[str, Slice | None]:
        if key.endswith(DENSE_END):
            return key.removesuffix(DENSE_END), None
        if key not in self.tensor_keys:
            raise FormatError(f"{where}: {key!r} is neither a dense tensor nor in {TENSOR_KEYS}")
        name, _, text = self.tensor_keys[key].rpartition("^")
        if "@" not in name:
            raise FormatError(
                f"{where}: {TENSOR_KEYS}: expected table@slot^begin@end@size for {key!r}, "
                f"found {self.tensor_keys[key]!r}"
            )
        return name, _parsed_slice(text, f"{where}: {key!r}")


def _parsed_slice(text: str, where: str) -> Slice:
    match = _SLICE.match(text)
    if match is None:
        raise FormatError(f"{where}: expected a slice begin@end@size, found {text!r}")
    begin, end, size = map(int, match.groups())
    if size != NUM_HASH_SLOTS:  # other shards would own the ids
        raise FormatError(
            f"{where}: the ids are spread over {size} hash slots; this reader knows {NUM_HASH_SLOTS}"
        )
    if not begin <= end <= size:
        raise FormatError(f"{where}: expected a slice of {size}, found {text!r}")
    return Slice(begin, end)


def newest(path: str) -> str:
    """The folder of a checkpoint: `path`, or the newest checkpoint of a training run in the folder `path`.

    RecIS adds a line with the folder's name to the file `checkpoint` when it has saved a checkpoint.

    Raises:
        NotFoundError: the newest checkpoint is missing or unfinished; RecIS does not go back to another.
        FormatError: a name is not that of a folder in the same folder.
    """
    run_uri = storage.join(path, RUN_FILE)
    if storage.exists(storage.join(path, INDEX)) or not storage.exists(run_uri) or storage.is_dir(run_uri):
        return path
    names = [line.strip() for line in storage.read_text(run_uri).splitlines() if line.strip()]
    for name in names:
        if storage.name(name) != name or name in (".", ".."):
            raise FormatError(f"{run_uri}: expected names of folders in the same folder, found {name!r:.80}")
    if not names:
        raise FormatError(f"{run_uri}: expected the name of a checkpoint in each line, found none")
    newest_path = storage.join(path, names[-1])
    if not storage.exists(storage.join(newest_path, INDEX)):
        others = f"; or name another: {', '.join(names[:-1][-5:])}" if names[:-1] else ""
        raise NotFoundError(
            f"{newest_path}: {run_uri} calls it the newest checkpoint, but it has no {INDEX!r}: its save is "
            f"unfinished, or it was deleted; save again{others}"
        )
    return newest_path


def read_index(path: str) -> Index:
    """Read the index of the checkpoint in the folder `path`."""
    uri = storage.join(path, INDEX)
    content = storage.read_json(uri)
    for key in ("block_index", "file_index"):
        numbers = content.get(key)
        if not isinstance(numbers, dict) or not all(type(number) is int for number in numbers.values()):
            raise FormatError(f"{uri}: {key}: expected numbers by name, found {numbers!r:.80}")
    for name in content["file_index"]:
        if storage.name(name) != name or name in ("", ".", ".."):
            raise FormatError(f"{uri}: expected names of files in the same folder, found {name!r}")
    keys_uri = storage.join(path, TENSOR_KEYS)
    tensor_keys = storage.read_json(keys_uri)
    if not all(isinstance(value, str) for value in tensor_keys.values()):
        raise FormatError(f"{keys_uri}: expected names as text")
    return Index(content["block_index"], content["file_index"], tensor_keys)


def write_index(path: str, index: Index) -> None:
    """Write the three files; the last one, `index`, completes the checkpoint."""
    _write(storage.join(path, MULTI_SHARD), index.multi_shard)
    _write(storage.join(path, TENSOR_KEYS), index.tensor_keys)
    blocks = {"block_index": index.block_index, "file_index": index.file_index}
    _write(storage.join(path, INDEX), blocks)


def read_note(uri: str) -> Index:
    """Read the note of one shard."""
    content = storage.read_json(uri)
    if content.keys() != vars(Index()).keys():
        raise FormatError(f"{uri}: expected the content that a shard has written, found {sorted(content)}")
    return Index(**content)


def write_note(uri: str, index: Index) -> None:
    """Write the note of one shard, each part sorted by key."""
    _write(uri, {name: dict(sorted(entries.items())) for name, entries in vars(index).items()})


def _write(uri: str, content: Any) -> None:
    storage.write_text(uri, json.dumps(content, ensure_ascii=False))
