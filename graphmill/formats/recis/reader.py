"""Reader of the tensors of a RecIS checkpoint, by name, whole or by rows."""

from contextlib import AbstractContextManager

import torch
from torch import Tensor

from graphmill import storage
from graphmill.errors import FormatError
from graphmill.formats.recis.layout import ID_SLOT, INDEX, Stored, UnknownTensorError, read_index
from graphmill.formats.recis.safetensors import Entry, SafetensorsFile, open_safetensors


class CheckpointReader:
    """Tensors by name: the name of a dense tensor, or `table@slot` for all shards of a table."""

    def __init__(self, path: str) -> None:
        """Raises FormatError or NotFoundError where there is no checkpoint, or its index is damaged."""
        self.path = path
        self._blocks = read_index(path).blocks(storage.join(path, INDEX))
        self._entries: dict[str, dict[str, Entry]] = {}

    def tensor_names(self) -> list[str]:
        """Names of all tensors, sorted."""
        return sorted(self._blocks)

    def table_slots(self) -> dict[str, list[str]]:
        """The slots of each table, without its ids."""
        slots: dict[str, list[str]] = {}
        for name in self.tensor_names():
            if self._blocks[name][0].slots is not None:
                table, _, slot = name.rpartition("@")
                slots.setdefault(table, []).extend([slot] if slot != ID_SLOT else [])
        return slots

    def dense_names(self) -> list[str]:
        """Names of the dense tensors."""
        return [name for name in self.tensor_names() if self._blocks[name][0].slots is None]

    def blocks(self, name: str) -> list[Stored]:
        """The blocks that make up a tensor.

        Raises:
            UnknownTensorError: there is no such tensor; a KeyError.
        """
        if name not in self._blocks:
            raise UnknownTensorError(
                f"{self.path}: no tensor {name!r}; it has {', '.join(self.tensor_names()[:20]) or 'none'}"
            )
        return self._blocks[name]

    def entry(self, block: Stored) -> Entry:
        """dtype, shape and place of a block.

        Raises:
            FormatError: the file that the index names does not hold it.
        """
        if block.file not in self._entries:
            with self.open_file(block) as file:
                self._entries[block.file] = file.entries
        if block.key not in self._entries[block.file]:
            raise FormatError(
                f"{storage.join(self.path, block.file)}: expected {block.key!r}, found no such tensor"
            )
        return self._entries[block.file][block.key]

    def open_file(self, block: Stored) -> AbstractContextManager[SafetensorsFile]:
        """Open the file of a block."""
        return open_safetensors(storage.join(self.path, block.file))

    def tensor_shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor; rows of all shards together.

        Raises:
            UnknownTensorError: there is no such tensor; a KeyError.
            FormatError: its blocks do not fit together.
        """
        return self._shape_and_dtype(name)[0]

    def tensor_dtype(self, name: str) -> torch.dtype:
        """dtype of a tensor.

        Raises:
            UnknownTensorError: there is no such tensor; a KeyError.
            FormatError: its blocks do not fit together.
        """
        return self._shape_and_dtype(name)[1]

    def read_tensor(self, name: str) -> Tensor:
        """Read a whole tensor, the rows of its shards one after the other.

        Raises:
            UnknownTensorError: there is no such tensor; a KeyError.
            FormatError: its blocks do not fit together.
        """
        self._shape_and_dtype(name)
        pieces = []
        for block in self.blocks(name):
            with self.open_file(block) as file:
                pieces.append(file.read(block.key))
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def _shape_and_dtype(self, name: str) -> tuple[tuple[int, ...], torch.dtype]:
        entries = [self.entry(block) for block in self.blocks(name)]
        first = entries[0]
        if any((each.shape[1:], each.dtype) != (first.shape[1:], first.dtype) for each in entries):
            raise FormatError(f"{self.path}: blocks of {name!r} differ in dtype or in the shape of a row")
        if len(entries) == 1:
            return first.shape, first.dtype
        return (sum(each.shape[0] for each in entries), *first.shape[1:]), first.dtype
