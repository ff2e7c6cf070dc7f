"""Writing to HDFS: a lost datanode costs time, and fails no write.

If a datanode fails in the middle of a block, hdfs-native replaces it. But for minutes after a datanode died,
the namenode still offers that datanode for new blocks. Java's client then asks for others; hdfs-native fails
at once, or waits without end. So the writer keeps the written bytes, in memory or in the local temporary
folder, and writes the file again from its start when an attempt fails, or makes no progress for STALL_S. A
small cluster may have no spare datanode: the last attempts, and all files for a while, ask for one copy less;
the namenode makes that copy later.

hdfs-native's writer is fast for `bytes` only: it reads any other buffer as Python integers, one per byte
(120 MB: 9.4 s instead of 0.8 s), and pyarrow writes `pyarrow.Buffer`s. So the writer joins small writes and
splits large writes into pieces of `bytes`.
"""

import io
import logging
import re
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from typing import IO, Any

# With dfs.namenode.avoid.write.stale.datanode, a namenode stops to offer a silent datanode after 30 s;
# without it, each attempt may get other datanodes.
DELAYS_S = (0.5, 1, 2, 4, 8, 16, 30, 30)

STALL_S = 60.0  # the shortest time that Java's client waits for a datanode

_NUM_FULL_ATTEMPTS = 4  # attempts with all copies
_SHORT_OF_DATANODES_S = 600  # after this time the namenode offers the dead datanode no more
_IN_MEMORY_BYTES = 8 << 20
_PIECE_BYTES = 1 << 20
OWN_ERROR = re.compile(  # in the texts of hdfs-native's errors, most of which have no type of their own
    r"\b(RPCError|FatalRPCError|GSSAPIError|SASLError|NoSASLMechanism|DataTransferError|ChecksumError"
    r"|BlocksNotFound|OperationFailed|InternalError|InvalidRPCResponse|UnsupportedFeature)\b"
)
_OF_DATANODES = ("DataTransferError", "BlocksNotFound", "OperationFailed")

log = logging.getLogger("graphmill")


def patiently(action: Callable[[], Any]) -> Any:
    """Call `action`, and call it again when the connection is lost; hdfs-native itself repeats only reads.

    A namenode that stops loses connections. A repeated action may already have happened: then the file to
    move or delete is missing, and the result is None.
    """
    was_lost = False
    for delay_s in (*DELAYS_S, None):
        try:
            return action()
        except FileNotFoundError:
            if was_lost:
                return None
            raise
        except (OSError, EOFError) as error:
            if delay_s is None or not _is_temporary(error):
                raise
            log.info("hdfs: trying again in %g s: %s", delay_s, str(error).partition("\n")[0])
            was_lost = True
            time.sleep(delay_s)
    raise AssertionError("the last attempt returns or raises")


def within(limit_s: float, action: Callable[[], Any]) -> Any:
    """Call `action` in a thread of its own; a TimeoutError after `limit_s`, and then the call goes on."""
    answer: Future[Any] = Future()

    def act() -> None:
        try:
            answer.set_result(action())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=act, daemon=True, name="hdfs").start()
    done, _ = wait([answer], limit_s)
    if not done:
        raise TimeoutError(f"no answer within {limit_s:g} s")
    return answer.result()


class Cluster:
    """A client, and whether its cluster has enough datanodes."""

    def __init__(self, client: Any) -> None:
        """`client` is hdfs-native's."""
        self.client = client
        self.short_until = 0.0  # until then, new files ask for one copy less
        self._usual_copies = 1

    def num_copies(self, path: str, options: Any) -> int:
        """The number of copies that the file `path` should have; `options` is a WriteOptions."""
        if options.replication:
            return int(options.replication)
        with suppress(FileNotFoundError):
            self._usual_copies = patiently(lambda: self.client.get_file_info(path)).replication or 1
        return self._usual_copies


def open_new(cluster: Cluster, path: str, options: Any) -> io.BufferedWriter:
    """Create a file whose writing survives lost datanodes; `options` is hdfs-native's WriteOptions."""
    return io.BufferedWriter(_ReplayingWriter(cluster, path, options), _PIECE_BYTES)


class _ReplayingWriter(io.RawIOBase):
    """A new file, written again from its start after each failure."""

    def __init__(self, cluster: Cluster, path: str, options: Any) -> None:
        self._cluster = cluster
        self._name = path
        self._options = options
        self._num_copies: int | None = None  # of the finished file, if it is written with one less
        self._attempts = enumerate(DELAYS_S, start=1)
        self._file: Any = None
        self._failure: Exception | None = None
        self._written: IO[bytes] = tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES)  # noqa: SIM115
        if time.monotonic() < cluster.short_until:
            self._ask_for_one_copy_less()
        self._file = patiently(lambda: cluster.client.create(path, options))

    def writable(self) -> bool:
        return True

    def write(self, buffer: Any) -> int:
        """Append a piece of the buffer, and return its length."""
        if self._failure is not None:
            raise self._failure
        piece = memoryview(buffer)[:_PIECE_BYTES].tobytes()
        self._written.write(piece)
        try:
            within(STALL_S, partial(self._file.write, piece))
        except Exception as error:
            self._write_again(error)
        return len(piece)

    def close(self) -> None:
        """Finish the file, unless the last attempt has failed."""
        try:
            while self._file is not None:
                try:
                    within(STALL_S, self._file.close)
                    if self._num_copies:
                        self._cluster.client.set_replication(self._name, self._num_copies)
                    self._drop_file()
                except Exception as error:
                    self._write_again(error)
        finally:
            self._written.close()
            super().close()

    def _ask_for_one_copy_less(self) -> None:
        self._num_copies = self._cluster.num_copies(self._name, self._options)
        self._options.replication = max(1, self._num_copies - 1)

    def _drop_file(self) -> None:
        """Drop hdfs-native's file, and keep garbage collection from closing it: that may wait forever."""
        if self._file is not None:
            self._file.close = lambda: None
        self._file = None

    def _write_again(self, error: Exception) -> None:
        while True:
            self._drop_file()
            num_failures, delay_s = next(self._attempts, (0, 0.0))
            if not num_failures or not _is_temporary(error):
                self._failure = error
                raise error
            log.info("%s: writing again in %g s: %s", self._name, delay_s, str(error).partition("\n")[0])
            time.sleep(delay_s)
            try:
                if num_failures > _NUM_FULL_ATTEMPTS and self._num_copies is None:
                    self._ask_for_one_copy_less()
                    self._cluster.short_until = time.monotonic() + _SHORT_OF_DATANODES_S
                create = partial(self._cluster.client.create, self._name, self._options)
                self._file = within(STALL_S, create)
                self._written.seek(0)
                while piece := self._written.read(_PIECE_BYTES):
                    within(STALL_S, partial(self._file.write, piece))
            except Exception as another:
                error = another
            else:
                return


def _is_temporary(error: Exception) -> bool:
    """Tell whether another attempt may succeed, because the error concerns one datanode or one connection."""
    if type(error) is RuntimeError:
        return any(name in str(error) for name in _OF_DATANODES)
    # A refused connection comes as a bare OSError.
    return type(error) is OSError or isinstance(error, ConnectionError | TimeoutError | EOFError)
