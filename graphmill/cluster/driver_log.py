"""The output of a driver in a container, as files that the client on the edge node follows.

    hdfs:///user/USER/.graphmill/application_.../
        stdout-0000  stdout-0001  ...       parts of PART_BYTES; the last one is replaced while it grows
        stderr-0000  ...
        exit                                the exit code; written last

Storage needs neither to append nor to read half-written files. A driver that starts again on another node
continues after the parts of the first one.
"""

import sys
import threading
from collections.abc import Iterator
from typing import BinaryIO

from graphmill import storage
from graphmill.errors import NotFoundError

PART_BYTES = 1 << 20
STREAMS = ("stdout", "stderr")

_EXIT = "exit"


def _parts(folder: str, stream: str) -> list[storage.FileStatus]:
    return [entry for entry in storage.list_dir(folder) if storage.name(entry.uri).startswith(f"{stream}-")]


class Writer:
    """Writes the streams of a driver; `add` may be called from any thread."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._part = {stream: bytearray() for stream in STREAMS}  # the content from the last part on
        self._number: dict[str, int] = {}  # of the last part; known from the first flush on
        self._num_written = dict.fromkeys(STREAMS, 0)

    def add(self, stream: str, text: bytes) -> None:
        """Keep the text for the next `flush`."""
        with self._lock:
            self._part[stream] += text

    def flush(self) -> None:
        """Write what is new."""
        for stream in STREAMS:
            while self._flush_part(stream):
                pass

    def finish(self, exit_code: int) -> None:
        """Write what is left, and the exit code."""
        self.flush()
        storage.write_text(storage.join(self.folder, _EXIT), f"{exit_code}\n")

    def _flush_part(self, stream: str) -> bool:
        """Write the last part if it has grown, and tell whether it is full."""
        with self._lock:
            content = bytes(self._part[stream][:PART_BYTES])
        if len(content) == self._num_written[stream]:
            return False
        if stream not in self._number:
            self._number[stream] = len(_parts(self.folder, stream))
        with storage.atomic_output(_part_uri(self.folder, stream, self._number[stream])) as target:
            target.write(content)
        self._num_written[stream] = len(content)
        if len(content) < PART_BYTES:
            return False
        with self._lock:
            del self._part[stream][:PART_BYTES]
        self._number[stream] += 1
        self._num_written[stream] = 0
        return True


def _part_uri(folder: str, stream: str, number: int) -> str:
    return storage.join(folder, f"{stream}-{number:04}")


class Reader:
    """Reads what is new in the streams of a driver."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._at = dict.fromkeys(STREAMS, (0, 0))  # number of the part, and its bytes that are read

    def exit_code(self) -> int | None:
        """Return the exit code, or None while it runs. Read the output after it: then nothing is missing."""
        try:
            return int(storage.read_text(storage.join(self.folder, _EXIT)))
        except NotFoundError:
            return None

    def show(self) -> bool:
        """Write what is new to the streams of this process, and tell whether there was anything."""
        is_any = False
        for stream, target in zip(STREAMS, (sys.stdout.buffer, sys.stderr.buffer), strict=True):
            is_any |= self._show_stream(stream, target)
        return is_any

    def _show_stream(self, stream: str, target: BinaryIO) -> bool:
        is_any = False
        for text in self._new(stream):
            target.write(text)
            target.flush()
            is_any = True
        return is_any

    def _new(self, stream: str) -> Iterator[bytes]:
        for number, status in enumerate(_parts(self.folder, stream)):
            part, num_read = self._at[stream]
            if number < part or (number == part and status.size_bytes <= num_read):
                continue
            content = storage.read_bytes(status.uri)
            yield content[num_read:] if number == part else content
            self._at[stream] = number, len(content)
