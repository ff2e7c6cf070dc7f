"""The process in a driver's container: runs the command of a user, and writes its output for the client.

python -m graphmill.cluster.driver hdfs:///user/USER/.graphmill -m graphmill pipeline --conf ...
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import IO

from graphmill import storage
from graphmill.cluster import hadoop
from graphmill.cluster.driver_log import STREAMS, Writer
from graphmill.errors import StorageError

FLUSH_S = 2.0
_RETRIES = 60  # of the last write, while a namenode fails over or starts again


def run(root: str, words: Sequence[str]) -> int:
    """Run `python WORDS`, and return its exit code; its output goes to a folder in `root` too."""
    process = subprocess.Popen(
        [sys.executable, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(os.environ),
    )

    def terminate(number: int, frame: FrameType | None) -> None:
        process.terminate()

    signal.signal(signal.SIGTERM, terminate)
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
        _flush(writer)
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


def _flush(writer: Writer) -> None:
    try:
        writer.flush()
    except StorageError as error:  # the run goes on without its log
        sys.stderr.write(f"the log of the driver is written later: {error}\n")


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
