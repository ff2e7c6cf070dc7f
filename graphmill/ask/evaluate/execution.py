"""Runs the tasks of an evaluation: one after the other in this process, or on a cluster."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from distributed import Client

from graphmill import cluster, storage
from graphmill.display import progress
from graphmill.storage import run_folder

Result = TypeVar("Result")


@dataclass(frozen=True)
class Execution:
    """Runs tasks in this process, or on the workers of `client`.

    Attributes:
        num_workers: tasks that run at the same time.
        sharers: tasks that run at the same time on one machine.
        folder_uri: work folder; a temporary one on this machine, if None.
    """

    client: Client | None = None
    num_workers: int = 1
    sharers: int = 1
    folder_uri: str | None = None

    @classmethod
    def on(cls, client: Client, folder_uri: str) -> "Execution":
        """Run on the workers that are there now."""
        hosts = cluster.workers_by_host(client)
        return cls(client, max(1, hosts.total()), max(hosts.values(), default=1), folder_uri)

    def run(
        self, function: Callable[..., Result], arguments: Sequence[tuple[Any, ...]], description: str
    ) -> list[Result]:
        """Run `function(*each)` for each of `arguments`; the results in the same order."""
        if self.client is not None:
            return cluster.run_tasks(self.client, function, arguments, description=description)
        results = []
        for number, argument in enumerate(arguments):
            results.append(function(*argument))
            if description != COUNTING:  # it tells more itself
                progress.report(description, number + 1, len(arguments), "tasks")
        return results

    @contextmanager
    def folder(self) -> Iterator[str]:
        """The work folder, which ends with the block."""
        if self.folder_uri is None:
            with run_folder.temporary() as path:
                yield path
            return
        try:
            yield self.folder_uri
        finally:
            storage.delete(self.folder_uri)


COUNTING = "evaluate"
"""The description of the longest work."""
