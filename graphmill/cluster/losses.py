"""Workers that went away while a run was at work, told in the log and counted."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from distributed import Client

from graphmill.machine import leftovers

_TOPIC = "all"  # Dask's own, of the scheduler

log = logging.getLogger("graphmill")


class Losses:
    """The workers that were lost so far: died, killed, or gone with their container or node."""

    def __init__(self) -> None:
        self.num_workers = 0
        self._num_missing = 0

    @contextmanager
    def counted(self, client: Client) -> Iterator[None]:
        """Count the workers that go during the block, other than in order."""
        client.subscribe_topic(_TOPIC, self._note)
        try:
            yield
        finally:
            client.unsubscribe_topic(_TOPIC)

    def _note(self, event: tuple[Any, Any]) -> None:
        told = event[1] if isinstance(event[1], dict) else {}
        if told.get("action") == "remove-worker" and not told.get("expected"):
            self.num_workers += 1
            self._num_missing += 1
            log.warning(
                "cluster: lost the worker %s, the %d. of this run; its tasks run again elsewhere",
                told.get("worker"),
                self.num_workers,
            )
        elif told.get("action") == "add-worker" and self._num_missing:
            self._num_missing -= 1
            leftovers.note()  # it was started with queues of its own
            log.info("cluster: the worker %s has come in the place of one that was lost", told.get("worker"))
