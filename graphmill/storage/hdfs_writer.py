"""Writing to HDFS so that a datanode that goes away costs time and nothing else.

hdfs-native goes on when a datanode fails in the middle of a block, if there is another to take its place. But
for minutes after a datanode died the namenode still gives it out for new blocks; hdfs-native then fails at
once, where Java's client asks for others, or waits for ever. So what was written is kept, in memory or in
the local temporary folder, and written anew from the start when an attempt fails, or stands still for
STALL_S. A small cluster may have no datanode to spare: the last attempts, and for a while all files, ask
for a copy less, which the namenode makes up for later.

Its writer is fast for `bytes` only: any other buffer is walked byte by byte as Python integers (120 MB: 9.4 s
instead of 0.8 s), and pyarrow hands over `pyarrow.Buffer`s. Small writes are put together and large ones
taken apart, so that neither their number nor their size counts.
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

# By default a namenode gives up a silent datanode for writes after 30 s, where it is told to
# (dfs.namenode.avoid.write.stale.datanode); elsewhere each attempt draws others.
DELAYS_S = (0.5, 1, 2, 4, 8, 16, 30, 30)

STALL_S = 60.0  # the least that Java's client waits for a datanode before it takes another

_PATIENCE = 4  # attempts with all copies
_SHORT_OF_DATANODES_S = 600  # by then the namenode has given up the one that died
_IN_MEMORY_BYTES = 8 << 20
_PIECE_BYTES = 1 << 20
_OWN_ERROR = re.compile(
    r"\b(RPCError|FatalRPCError|GSSAPIError|SASLError|NoSASLMechanism|DataTransferError|ChecksumError"
    r"|BlocksNotFound|OperationFailed|InternalError|InvalidRPCResponse|UnsupportedFeature)\b"
)
_OF_DATANODES = ("DataTransferError", "BlocksNotFound", "OperationFailed")

log = logging.getLogger("graphmill")


def is_own_error(error: RuntimeError) -> bool:
    """Whether hdfs-native has raised it; most of its errors have no type of their own."""
    return _OWN_ERROR.search(str(error)) is not None


def patiently(action: Callable[[], Any]) -> Any:
    """What `action` returns, done again when the connection is lost in the middle of it.

    That is what a namenode's end looks like; hdfs-native itself repeats only what reads. An action may then
    have been done already: what it wanted to move or delete is not there any more.
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
            if delay_s is None or not _may_pass(error):
                raise
            log.info("hdfs: once more in %g s: %s", delay_s, str(error).partition("\n")[0])
            was_lost = True
            time.sleep(delay_s)
    raise AssertionError("the last attempt returns or raises")


def within(limit_s: float, action: Callable[[], Any]) -> Any:
    """What `action` returns; a call that takes longer is left behind, in a thread of its own.

    Raises:
        TimeoutError: it has not returned in time.
    """
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
    """A client, and what writing through it has found out about the datanodes."""

    def __init__(self, client: Any) -> None:
        """`client` is hdfs-native's."""
        self.client = client
        self._short_until = 0.0
        self._usual_copies = 1

    @property
    def is_short_of_datanodes(self) -> bool:
        """Whether a file has lately found too few for all its copies."""
        return time.monotonic() < self._short_until

    def found_short(self) -> None:
        """Have the next files ask for a copy less, for a while."""
        self._short_until = time.monotonic() + _SHORT_OF_DATANODES_S

    def num_copies(self, path: str, options: Any) -> int:
        """How many copies the file `path`, made with `options` (a WriteOptions), is to have."""
        if options.replication:
            return int(options.replication)
        with suppress(FileNotFoundError):
            self._usual_copies = patiently(lambda: self.client.get_file_info(path)).replication or 1
        return self._usual_copies


def open_new(cluster: Cluster, path: str, options: Any) -> io.BufferedWriter:
    """A new file that outlives the datanodes it is written to; `options` are hdfs-native's WriteOptions."""
    return io.BufferedWriter(_ReplayingWriter(cluster, path, options), _PIECE_BYTES)


class _ReplayingWriter(io.RawIOBase):
    """A new file, made anew whenever writing it fails."""

    def __init__(self, cluster: Cluster, path: str, options: Any) -> None:
        self._cluster = cluster
        self._name = path
        self._options = options
        self._num_failures = 0
        self._num_copies: int | None = None  # as many as the file is to have, while it is made with less
        self._delays = iter(DELAYS_S)
        self._file: Any = None
        self._failure: Exception | None = None
        self._written: IO[bytes] = tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES)  # noqa: SIM115
        if cluster.is_short_of_datanodes:
            self._ask_for_less()
        self._file = patiently(lambda: cluster.client.create(path, options))

    def writable(self) -> bool:
        """As `io` asks."""
        return True

    def write(self, buffer: Any) -> int:
        """Append a piece of the buffer, and tell its length."""
        if self._failure is not None:
            raise self._failure
        piece = memoryview(buffer)[:_PIECE_BYTES].tobytes()
        self._written.write(piece)
        try:
            within(STALL_S, partial(self._file.write, piece))
        except Exception as error:
            self._write_anew(error)
        return len(piece)

    def close(self) -> None:
        """Finish the file, unless writing it has failed for good."""
        try:
            while self._file is not None:
                try:
                    within(STALL_S, self._file.close)
                    if self._num_copies:
                        self._cluster.client.set_replication(self._name, self._num_copies)
                    self._let_go()
                except Exception as error:
                    self._write_anew(error)
        finally:
            self._written.close()
            super().close()

    def _ask_for_less(self) -> None:
        self._num_copies = self._cluster.num_copies(self._name, self._options)
        self._options.replication = max(1, self._num_copies - 1)

    def _let_go(self) -> None:
        """Drop hdfs-native's file, which garbage collection would close again, and perhaps wait for ever."""
        if self._file is not None:
            self._file.close = _nothing
        self._file = None

    def _write_anew(self, error: Exception) -> None:
        while True:
            self._let_go()
            self._num_failures += 1
            delay_s = next(self._delays, None)
            if delay_s is None or not _may_pass(error):
                self._failure = error
                raise error
            log.info("%s: writing anew in %g s: %s", self._name, delay_s, str(error).partition("\n")[0])
            time.sleep(delay_s)
            try:
                if self._num_failures > _PATIENCE and self._num_copies is None:
                    self._ask_for_less()
                    self._cluster.found_short()
                create = partial(self._cluster.client.create, self._name, self._options)
                self._file = within(STALL_S, create)
                self._written.seek(0)
                while piece := self._written.read(_PIECE_BYTES):
                    within(STALL_S, partial(self._file.write, piece))
            except Exception as another:
                error = another
            else:
                return


def _nothing() -> None:
    pass


def _may_pass(error: Exception) -> bool:
    """Whether it is about a datanode, of which there are others."""
    if type(error) is RuntimeError:
        return any(name in str(error) for name in _OF_DATANODES)
    # A refused connection comes as a bare OSError.
    return type(error) is OSError or isinstance(error, ConnectionError | TimeoutError | EOFError)
