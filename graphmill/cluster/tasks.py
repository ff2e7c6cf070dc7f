"""Tasks of all stages: run functions on the workers, show their progress, count the workers that are lost."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

from distributed import Client, Future, KilledWorker, as_completed
from distributed.client import FutureCancelledError
from distributed.scheduler import NoValidWorkerError, NoWorkerError

from graphmill.display import progress
from graphmill.errors import ClusterError, DiskFullError, StorageError
from graphmill.machine import shortage

Result = TypeVar("Result")

RETRY_DELAYS_S = (1.0, 4.0, 15.0)
"""Delays before a task with a StorageError runs again."""
_POLL_S = 0.05
_SCHEDULER_TOPIC = "all"

log = logging.getLogger("graphmill")


def run_tasks(
    client: Client,
    function: Callable[..., Result],
    arguments: Sequence[tuple[Any, ...]],
    *,
    description: str,
    unit: str = "tasks",
    keep: Callable[[Result], Any] | None = None,
) -> list[Any]:
    """Run `function(*each)` for each of `arguments` as a Dask task; return the results in the same order.

    `keep` is called with each result as it arrives; what it returns takes the place of the result. It can add
    up large results, of which this process then holds one at a time.

    A task may run more than once: its function must write the same files each time. Dask runs the tasks of a
    dead worker again. A task with a StorageError runs again a few times, unless a path is wrong or a disk is
    full.

    The first other error cancels the remaining tasks. The error is raised when no task runs any more, so that
    the caller can delete their files.
    """
    progress.report(description, 0, len(arguments), unit)
    number_of: dict[Future, int] = {
        client.submit(function, *argument, pure=False): number for number, argument in enumerate(arguments)
    }
    delays = [iter(RETRY_DELAYS_S) for _ in arguments]
    completed = as_completed(list(number_of))
    results: list[Any] = [None] * len(arguments)
    num_done = 0
    try:
        for future in completed:
            number = number_of.pop(future)
            try:
                result = _result(future, description)
            except StorageError as error:
                may_pass = error.exit_code == StorageError.exit_code and not isinstance(error, DiskFullError)
                delay_s = next(delays[number], None) if may_pass else None
                if delay_s is None:
                    raise
                log.warning("%s: trying again in %g s: %s", description, delay_s, error)
                again = client.submit(_later, delay_s, function, *arguments[number], pure=False)
                number_of[again] = number
                completed.add(again)
            else:
                results[number] = result if keep is None else keep(result)
                num_done += 1
                progress.report(description, num_done, len(arguments), unit)
        return results
    except Exception:
        unfinished = {future.key for future in number_of if not future.done()}
        with cleaning_up(client), suppress(OSError):  # the cluster and its tasks are gone
            client.cancel(list(number_of))
            while any(client.run(_holds, unfinished, on_error="ignore").values()):
                time.sleep(_POLL_S)
        raise
    finally:
        with cleaning_up(client):
            client.cancel(list(number_of))


@contextmanager
def cleaning_up(client: Client) -> Iterator[None]:
    """Ask the cluster to free something; ignore the errors of a lost cluster: they would hide the cause."""
    try:
        yield
    except Exception:
        if client.status not in ("closing", "closed"):
            raise


@contextmanager
def listening(client: Client, topic: str, handler: Callable[[tuple[Any, Any]], None]) -> Iterator[None]:
    """Call `handler` with each event of a topic of Dask, (time, message), during the block."""
    client.subscribe_topic(topic, handler)
    try:
        yield
    finally:
        with cleaning_up(client):
            client.unsubscribe_topic(topic)


def _later(delay_s: float, function: Callable[..., Result], *arguments: Any) -> Result:
    time.sleep(delay_s)
    return function(*arguments)


def _holds(keys: set[str], dask_worker: Any) -> bool:
    """Tell whether the worker still has one of these tasks: Dask does not interrupt a cancelled task."""
    return not keys.isdisjoint(dask_worker.state.tasks)


def run_task(client: Client, function: Callable[..., Result], *arguments: Any, description: str) -> Result:
    """Run one long Dask task and show its progress."""
    with listening(client, progress.TOPIC, lambda event: progress.show(_told(event[1]))):
        future = client.submit(function, *arguments, pure=False)
        try:
            result: Result = _result(future, description)
            progress.end(description)
            return result
        finally:
            with cleaning_up(client):
                client.cancel([future])


def _told(content: dict[str, Any]) -> progress.Tick:
    return progress.Tick(**{key: field for key, field in content.items() if key != "worker"})  # Dask adds it


def shown_by_worker(client: Client) -> AbstractContextManager[None]:
    """Show the progress of long tasks that run side by side during the block, each worker's by itself."""
    numbers: dict[str, int] = {}

    def show(event: tuple[Any, dict[str, Any]]) -> None:
        tick = _told(event[1])
        number = numbers.setdefault(event[1]["worker"], len(numbers) + 1)
        progress.show(replace(tick, description=f"{tick.description}, worker {number}"))

    return listening(client, progress.TOPIC, show)


def _result(future: Future, description: str) -> Any:
    try:
        return future.result()
    except KilledWorker as error:
        raise ClusterError(
            f"{description}: the task's worker died {error.allowed_failures + 1} times, the last on "
            f"{error.last_worker.address if error.last_worker else 'an unknown address'}; "
            f"{shortage.of_killed_workers()}"
        ) from error
    except NoWorkerError as error:
        raise ClusterError(
            f"{description}: all workers died, and none has come back within {error.timeout:g} s; "
            f"{shortage.of_killed_workers()}; start again: finished work is kept"
        ) from error
    except NoValidWorkerError as error:
        raise ClusterError(
            f"{description}: no worker has taken a task for {error.timeout:g} s, as none does while 80 % "
            "of its memory is full; raise cluster.worker_memory, and start again: finished work is kept"
        ) from error
    except FutureCancelledError as error:  # only a lost cluster cancels a task that this process waits for
        raise ClusterError(f"{description}: the cluster went away: {error.msg or error.reason}") from error


class Losses:
    """Number of workers that died, were killed, or were lost with their container or node."""

    def __init__(self) -> None:
        self.num_workers = 0
        self._num_missing = 0

    def counted(self, client: Client) -> AbstractContextManager[None]:
        """Count the workers that leave unexpectedly during the block."""
        return listening(client, _SCHEDULER_TOPIC, self._count)

    def _count(self, event: tuple[Any, Any]) -> None:
        message = event[1] if isinstance(event[1], dict) else {}
        if message.get("action") == "remove-worker" and not message.get("expected"):
            self.num_workers += 1
            self._num_missing += 1
            text = "cluster: lost the worker %s, number %d of this run; its tasks run again on other workers"
            log.warning(text, message.get("worker"), self.num_workers)
        elif message.get("action") == "add-worker" and self._num_missing:
            self._num_missing -= 1
            log.info("cluster: the worker %s replaces a lost one", message.get("worker"))
