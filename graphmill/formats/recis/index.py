"""The JSON files of a RecIS checkpoint: the file, the table and the slots of each block.

`index` is written last: a folder without it is no checkpoint.
"""

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from graphmill import storage
from graphmill.errors import FormatError
from graphmill.formats.recis import names
from graphmill.formats.recis.names import Slice


@dataclass(frozen=True)
class Stored:
    """A block: its key in a file of tensors, and the slots of its ids (None: a dense tensor)."""

    key: str
    file: str
    slots: Slice | None


@dataclass
class Index:
    """Content of a checkpoint, or of one shard."""

    block_index: dict[str, int] = field(default_factory=dict)
    file_index: dict[str, int] = field(default_factory=dict)
    tensor_keys: dict[str, str] = field(default_factory=dict)
    multi_shard: dict[str, dict[str, Any]] = field(default_factory=dict)

    def update(self, other: "Index") -> None:
        """Add the content of another shard."""
        for name, entries in vars(self).items():
            entries.update(getattr(other, name))

    def ordered(self) -> "Index":
        """The same content, sorted by key, as in the note of a shard."""
        return Index(**{name: dict(sorted(entries.items())) for name, entries in vars(self).items()})

    def blocks(self, where: str) -> dict[str, list[Stored]]:
        """The blocks of each tensor in the order of slots, by name: `table@slot`, or a dense tensor's.

        Raises:
            FormatError: the files contradict each other.
        """
        files = {number: name for name, number in self.file_index.items()}
        found: dict[str, list[Stored]] = {}
        for key, number in self.block_index.items():
            if number not in files:
                raise FormatError(f"{where}: {key!r} lies in file {number}, which file_index does not have")
            name, slots = names.dense_name(key), None
            if name is None:
                name, slots = self._name_and_slots(key, where)
            found.setdefault(name, []).append(Stored(key, files[number], slots))
        for name, blocks in found.items():
            sliced = [block.slots for block in blocks if block.slots is not None]
            if len(blocks) > 1 and len(sliced) < len(blocks):
                raise FormatError(f"{where}: {name!r} is a dense tensor and a table's slot at once")
            ordered = sorted(sliced)
            if any(left.end > right.begin for left, right in itertools.pairwise(ordered)):
                raise FormatError(f"{where}: {name!r}: slices overlap: {', '.join(map(str, ordered))}")
            blocks.sort(key=lambda block: block.slots or Slice(0, 0))
        return found

    def _name_and_slots(self, key: str, where: str) -> tuple[str, Slice]:
        if key not in self.tensor_keys:
            raise FormatError(f"{where}: {key!r} is neither a dense tensor nor in {names.TENSOR_KEYS}")
        name, caret, text = self.tensor_keys[key].rpartition("^")
        if not caret or names.table_and_slot(name) is None:
            raise FormatError(
                f"{where}: {names.TENSOR_KEYS}: expected table@slot^begin@end@size for {key!r}, "
                f"found {self.tensor_keys[key]!r}"
            )
        return name, names.parsed_slice(text, f"{where}: {key!r}")


def read_index(path: str) -> Index:
    """Read the index of the checkpoint in the folder `path`.

    Raises:
        NotFoundError: there is no `index`: no checkpoint, or an unfinished save.
        FormatError: a file does not follow the format.
    """
    uri = storage.join(path, names.INDEX)
    content = storage.read_json(uri)
    block_index, file_index = (_numbers(content.get(key), f"{uri}: {key}") for key in _KEYS)
    for name in file_index:
        if storage.name(name) != name or name in ("", ".", ".."):
            raise FormatError(f"{uri}: expected names of files in the same folder, found {name!r}")
    keys_uri = storage.join(path, names.TENSOR_KEYS)
    tensor_keys = storage.read_json(keys_uri)
    if not all(isinstance(value, str) for value in tensor_keys.values()):
        raise FormatError(f"{keys_uri}: expected names as text")
    return Index(block_index, file_index, tensor_keys)


def write_index(path: str, index: Index) -> None:
    """Write the three files; the last one, `index`, completes the checkpoint."""
    _write_object(path, names.MULTI_SHARD, index.multi_shard)
    _write_object(path, names.TENSOR_KEYS, index.tensor_keys)
    _write_object(path, names.INDEX, {key: getattr(index, key) for key in _KEYS})


def read_part(uri: str) -> Index:
    """Read the note of one shard.

    Raises:
        NotFoundError: the shard has not finished, or another shard has joined all notes.
        FormatError: the file is no such note.
    """
    content = storage.read_json(uri)
    if content.keys() != vars(Index()).keys():
        raise FormatError(f"{uri}: expected what a shard says that it has written, found {sorted(content)}")
    return Index(**content)


def write_part(uri: str, index: Index) -> None:
    """Write the note of one shard."""
    storage.write_text(uri, json.dumps(vars(index), ensure_ascii=False))


_KEYS = ("block_index", "file_index")


def _write_object(path: str, name: str, content: Mapping[str, Any]) -> None:
    storage.write_text(storage.join(path, name), json.dumps(content, ensure_ascii=False))


def _numbers(value: Any, where: str) -> dict[str, int]:
    if not isinstance(value, dict) or not all(type(each) is int for each in value.values()):
        raise FormatError(f"{where}: expected numbers by name, found {value!r:.80}")
    return value
