"""Workers that were lost during a run: logged and counted."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from distributed import Client

from graphmill.machine import run_folder

_TOPIC = "all"  # Dask's own, of the scheduler

log = logging.getLogger("graphmill")


class Losses:
    """Count of workers that died, were killed, or went with their container or node."""

    def __init__(self) -> None:
        self.num_workers = 0
        self._num_missing = 0

    @contextmanager
    def counted(self, client: Client) -> Iterator[None]:
        """Count the workers that leave unexpectedly during the block."""
        client.subscribe_topic(_TOPIC, self._count)
        try:
            yield
        finally:
            client.unsubscribe_topic(_TOPIC)

    def _count(self, event: tuple[Any, Any]) -> None:
        message = event[1] if isinstance(event[1], dict) else {}
        if message.get("action") == "remove-worker" and not message.get("expected"):
            self.num_workers += 1
            self._num_missing += 1
            log.warning(
                "cluster: lost the worker %s, the %d. of this run; its tasks run again elsewhere",
                message.get("worker"),
                self.num_workers,
            )
        elif message.get("action") == "add-worker" and self._num_missing:
            self._num_missing -= 1
            run_folder.record_semaphores()  # those of the new worker's queues
            log.info(
                "cluster: the worker %s has come in the place of one that was lost", message.get("worker")
            )
