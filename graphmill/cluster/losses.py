"""Log and count of the workers that a run loses."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from distributed import Client

from graphmill.machine import run_folder

_TOPIC = "all"  # all events of the scheduler

log = logging.getLogger("graphmill")


class Losses:
    """Number of workers that died, were killed, or were lost with their container or node."""

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
            text = "cluster: lost the worker %s, number %d of this run; its tasks run again on other workers"
            log.warning(text, message.get("worker"), self.num_workers)
        elif message.get("action") == "add-worker" and self._num_missing:
            self._num_missing -= 1
            run_folder.record_semaphores()  # of the queues of the new worker
            log.info("cluster: the worker %s replaces a lost one", message.get("worker"))
