"""The zip that torch.save() writes: uncompressed records, so that elements can be read from their place."""

import sys
import zipfile
from typing import Any

from graphmill.errors import FormatError

_MAGIC = b"PK\x03\x04"
_HEADER_BYTES = 30


class Archive:
    """The records of an open file."""

    def __init__(self, stream: Any, size_bytes: int, where: str) -> None:
        """Raises FormatError where records are packed or overlap; for damage, the errors of `zipfile`."""
        self._stream = stream
        self._zip = zipfile.ZipFile(stream)
        records = self._zip.infolist()
        is_packed = any(record.compress_type != zipfile.ZIP_STORED for record in records)
        if is_packed or sum(each.file_size for each in records) > size_bytes:
            raise FormatError(
                f"{where}: expected records as they are, as torch.save() writes, found packed ones"
            )

    def names(self, end: str = "") -> list[str]:
        """Names of the records that end with `end`."""
        return [name for name in self._zip.namelist() if name.endswith(end)]

    def pickles(self) -> list[bytes]:
        """The content of every pickle, also of pickles that share a name."""
        return [self.read(record) for record in self._zip.infolist() if record.filename.endswith(".pkl")]

    def read(self, record: str | zipfile.ZipInfo) -> bytes:
        """The content of a record."""
        # Not by ZipFile.read(), which compares the CRC: torch can leave it out, and does not compare it.
        first_byte, num_bytes = self.place(record)
        self._stream.seek(first_byte)
        return bytes(self._stream.read(num_bytes))

    def place(self, record: str | zipfile.ZipInfo) -> tuple[int, int]:
        """First byte in the file, and number of bytes, of a record."""
        entry = self._zip.getinfo(record) if isinstance(record, str) else record
        self._stream.seek(entry.header_offset)
        header = self._stream.read(_HEADER_BYTES)
        if header[: len(_MAGIC)] != _MAGIC:
            raise zipfile.BadZipFile(f"no record at byte {entry.header_offset}")
        name_bytes, extra_bytes = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
        return entry.header_offset + _HEADER_BYTES + name_bytes + extra_bytes, entry.file_size

    def is_native(self) -> bool:
        """Whether the elements have the byte order of this machine."""
        return all(self.read(name) == sys.byteorder.encode() for name in self.names("/byteorder"))


def is_archive(stream: Any) -> bool:
    """Whether the file begins like a zip, which is how torch.load() decides."""
    stream.seek(0)
    return bool(stream.read(len(_MAGIC)) == _MAGIC)
