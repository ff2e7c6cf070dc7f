"""The store at which a group of torch.distributed meets: variables of Dask's scheduler.

Torch's own TCPStore listens on every address and accepts every connection. Variables of the scheduler are
encrypted like all of Dask's messages, and only workers of the run can set them.
"""

from collections.abc import Sequence
from datetime import timedelta

from distributed import Client, Variable
from torch._C._distributed_c10d import Store


class SchedulerStore(Store):
    """Implements the methods that groups use: one member sets a key once, the others read it."""

    def __init__(self, client: Client, name: str, timeout: timedelta) -> None:
        super().__init__()
        self._client = client
        self._name = name
        self._timeout = timeout
        self._set: list[str] = []

    def set(self, key: str, value: str | bytes) -> None:
        """Called by torch."""
        self._set.append(key)
        self._variable(key).set(value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        """Called by torch.

        Raises:
            TimeoutError: no member has set the key in time.
        """
        return self._wait(key, self._timeout)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Called by torch.

        Raises:
            TimeoutError: no member has set one of the keys in time.
        """
        for key in keys:
            self._wait(key, timeout or self._timeout)

    def check(self, keys: Sequence[str]) -> bool:
        """Called by torch, every second, for debugging signals: only this member's keys count."""
        return all(key in self._set for key in keys)

    def clone(self) -> "SchedulerStore":
        """Called by torch, for a thread of its own."""
        return self

    def forget(self) -> None:
        """Delete the keys that were set here from the scheduler."""
        for key in self._set:
            self._variable(key).delete()
        self._set.clear()

    def _variable(self, key: str) -> Variable:
        return Variable(f"{self._name}/{key}", client=self._client)

    def _wait(self, key: str, timeout: timedelta) -> bytes:
        # The scheduler would log a timeout of its own as an error.
        value: bytes = self._variable(key).get(callback_timeout=timeout.total_seconds())
        return value
