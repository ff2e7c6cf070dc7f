"""The workers that train: a task on each, what it is at, who was lost and who has come."""

import logging
import time
import uuid
from dataclasses import dataclass
from typing import Any

from distributed import Client, Future

from graphmill.config import Config
from graphmill.errors import ClusterError
from graphmill.vocab import Bucket
from train.edges.schedule import Key, Schedule
from train.run.run_metrics import Visit
from train.spread.messages import KEPT, CoordinatorEnd
from train.spread.places import Place

LOOK_S = 0.25  # how often the coordinator looks whether workers were lost or have come
ALONE_S = 120.0  # how long it waits for a worker when there is none

log = logging.getLogger("graphmill")


@dataclass(eq=False)
class Attempt:
    """A worker's task.

    Attributes:
        bucket: what it trains, with `grant`, the number of the permission.
        base: the shared state that it started from.
        visit: what training came to, once it is trained.
        wants: what it waits for.
        leader: the grant that writes what a group shares.
    """

    name: str
    address: str
    future: Future
    bucket: Bucket | None = None
    grant: int = 0
    base: Place | None = None
    visit: Visit | None = None
    wants: str | None = None  # "bucket" or "turn"
    last: Bucket | None = None
    untouched: tuple[Key, ...] = ()
    publishing: bool = False
    leader: int = 0


class Crew:
    """At most `num_workers` tasks at a time, each on a worker of its own.

    Attributes:
        attempts: by name.
    """

    def __init__(
        self, client: Client, line: CoordinatorEnd, num_workers: int, config: Config, plan: Schedule
    ) -> None:
        self.attempts: dict[str, Attempt] = {}
        self._client = client
        self._line = line
        self._num_workers = num_workers
        self._config = config
        self._plan = plan
        self._looked_s = 0.0
        self._seen_s = time.monotonic()  # a worker, the last time
        num_present = len(self._present())
        if num_present < num_workers:
            log.info(
                "training: %d workers are there, train.num_workers asks for %d", num_present, num_workers
            )

    def look(self, *, employ: bool) -> list[Attempt]:
        """The attempts whose workers were lost since; with `employ`, workers that have no task get one.

        Raises:
            ClusterError: no worker has been there for a while.
            Exception: what a task has raised.
        """
        now = time.monotonic()
        if now - self._looked_s < LOOK_S:
            return []
        if now - self._looked_s > ALONE_S:  # something else was done in between
            self._seen_s = now
        self._looked_s = now
        present = self._present()
        for attempt in self.attempts.values():
            if attempt.future.status == "error":
                attempt.future.result()
        lost = [attempt for attempt in self.attempts.values() if attempt.address not in present]
        for attempt in lost:
            self._client.cancel([attempt.future])
            self._forget(attempt)
        if self.attempts:
            self._seen_s = now
        if employ:
            self._employ(present)
        return lost

    def dismiss(self, attempt: Attempt) -> dict[str, Any]:
        """Let a task end; what it tells at last, nothing if its worker is lost first."""
        if attempt.name in self.attempts:
            self._line.send(attempt.name, "finished")
        while attempt.name in self.attempts and not attempt.future.done():
            self._line.receive(LOOK_S)
            self.look(employ=False)
        if attempt.name not in self.attempts:
            return {}
        told: dict[str, Any] = attempt.future.result()
        self._forget(attempt)
        return told

    def cancel(self) -> None:
        """Nobody wants the tasks' work any more; each notices by itself."""
        self._client.cancel([attempt.future for attempt in self.attempts.values()])

    def release(self) -> None:
        """Let go of what the workers keep from one task to the next."""
        self._client.run(_release, on_error="ignore")

    def _present(self) -> set[str]:
        return set(self._client.scheduler_info(n_workers=-1)["workers"])

    def _forget(self, attempt: Attempt) -> None:
        del self.attempts[attempt.name]
        self._line.hang_up(attempt.name)

    def _employ(self, present: set[str]) -> None:
        taken = {attempt.address for attempt in self.attempts.values()}
        for address in sorted(present - taken)[: self._num_workers - len(taken)]:
            name = f"graphmill-train-{uuid.uuid4().hex[:12]}"
            num_neighbours = min(self._num_workers, sum(_host(each) == _host(address) for each in present))
            self._line.open(name)
            future = self._client.submit(
                _work,
                self._config,
                self._plan,
                self._line.topic,
                name,
                num_neighbours,
                key=name,
                workers=[address],
                allow_other_workers=False,
                pure=False,
            )
            self.attempts[name] = Attempt(name, address, future)
        if not self.attempts and time.monotonic() - self._seen_s > ALONE_S:
            raise ClusterError(
                f"training: no worker has been there for {ALONE_S:.0f} s; a worker that exceeds its memory "
                "limit is killed: see cluster.worker_memory"
            )


def _work(*arguments: Any) -> dict[str, Any]:
    from train.spread.worker import work  # torch is for the worker: the client can do without it

    return work(*arguments)


def _release(dask_worker: Any) -> None:
    vars(dask_worker).pop(KEPT, None)


def _host(address: str) -> str:
    return address.rpartition(":")[0]
