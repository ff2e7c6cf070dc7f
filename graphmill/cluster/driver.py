"""The process in a driver's container: runs the command of a user, and writes its output for the client.

python -m graphmill.cluster.driver hdfs:///user/USER/.graphmill -m graphmill pipeline --conf ...

    hdfs:///user/USER/.graphmill/application_.../
        stdout-0000  stdout-0001  ...       parts of PART_BYTES; the last one is replaced while it grows
        stderr-0000  ...
        exit                                the exit code; written last

Storage needs neither to append nor to read half-written files. A driver that starts again on another node
continues after the parts of the first one.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from graphmill import storage
from graphmill.cluster import hadoop
from graphmill.errors import StorageError

FLUSH_S = 2.0
_RETRIES = 60  # of the last write, while a namenode fails over or starts again
PART_BYTES = 1 << 20
STREAMS = ("stdout", "stderr")

_EXIT = "exit"


def _parts(folder: str, stream: str) -> list[storage.FileStatus]:
    parts = [entry for entry in storage.list_dir(folder) if storage.name(entry.uri).startswith(f"{stream}-")]
    return sorted(parts, key=lambda part: int(part.uri.rpartition("-")[2]))  # part 10000 comes after 9999


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
        uri = storage.join(self.folder, f"{stream}-{self._number[stream]:04}")
        with storage.atomic_output(uri) as target:
            target.write(content)
        self._num_written[stream] = len(content)
        if len(content) < PART_BYTES:
            return False
        with self._lock:
            del self._part[stream][:PART_BYTES]
        self._number[stream] += 1
        self._num_written[stream] = 0
        return True


class Reader:
    """Reads what is new in the streams of a driver."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._at = dict.fromkeys(STREAMS, (0, 0))  # number of the part, and its bytes that are read

    def exit_code(self) -> int | None:
        """Return the exit code, or None while it runs. Read the output after it: then nothing is missing."""
        text = storage.read_if_there(storage.join(self.folder, _EXIT))
        return None if text is None else int(text)

    def show(self) -> bool:
        """Write what is new to the streams of this process, and tell whether there was anything."""
        is_any = False
        for stream, target in zip(STREAMS, (sys.stdout.buffer, sys.stderr.buffer), strict=True):
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


def run(root: str, words: Sequence[str]) -> int:
    """Run `python WORDS`, and return its exit code; its output goes to a folder in `root` too."""
    process = subprocess.Popen(
        [sys.executable, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    signal.signal(signal.SIGTERM, lambda number, frame: process.terminate())
    # Only the user may read the log.
    os.environ[hadoop.CONF_VARIABLE] = hadoop.private_conf(
        Path(os.environ[hadoop.CONF_VARIABLE]), Path.cwd() / "tmp"
    )
    application, _ = hadoop.application_of(os.environ["CONTAINER_ID"])
    writer = Writer(storage.join(root, application))
    pumps = [
        threading.Thread(target=_pump, args=(name, getattr(process, name), writer), daemon=True)
        for name in STREAMS
    ]
    for pump in pumps:
        pump.start()
    while process.poll() is None:
        try:
            writer.flush()
        except StorageError as error:  # the run goes on without its log
            sys.stderr.write(f"the log of the driver is written later: {error}\n")
        time.sleep(FLUSH_S)
    for pump in pumps:
        pump.join(FLUSH_S)  # a process that it has left behind may keep the streams open
    return _finish(writer, process.returncode)


def _pump(name: str, source: IO[bytes], writer: Writer) -> None:
    """Copy lines to the log, and to the stream of the same name, which is in the log of the container."""
    own = getattr(sys, name).buffer
    for line in source:
        writer.add(name, line)
        own.write(line)
        own.flush()


def _finish(writer: Writer, code: int) -> int:
    if code < 0:
        name = signal.Signals(-code).name
        text = f"error: {name} has ended the driver; if its memory was too small, raise --driver-memory\n"
        writer.add("stderr", text.encode())
        code = 128 - code
    for _ in range(_RETRIES):
        try:
            writer.finish(code)
            break
        except StorageError as error:
            sys.stderr.write(f"the exit code is written later: {error}\n")
            time.sleep(FLUSH_S)
    return code


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2:]))
