"""The Dask cluster a command works on: started here, or joined at its address."""

import importlib.util
import logging
import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, TypeVar

import dask
from distributed import Client, Future, KilledWorker, LocalCluster, WorkerPlugin, as_completed
from pydantic import Field

from graphmill import progress
from graphmill.config import Positive, Section
from graphmill.errors import ClusterError, ConfigError
from graphmill.storage import hdfs

Result = TypeVar("Result")

ANY_PORT = ":0"  # Dask's fixed one makes a second cluster on the machine complain

_ADDRESS = re.compile(r"^(tcp|tls)://")

log = logging.getLogger("graphmill")

# What a worker process must be started with.
ENVIRONMENT = {
    # Dask's nanny sets a trim threshold of 64 KiB, which makes glibc return and fault again every numpy
    # temporary: 14 % of the ETL's and up to half of the trainer's time.
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(64 << 20),
    # Threads that wait for each other by spinning take the core from the one they wait for as soon as
    # anything else runs on the machine: two threads beside one busy process trained at a tenth of the speed.
    "OMP_WAIT_POLICY": "PASSIVE",
}


class ClusterConfig(Section):
    """The section `cluster`."""

    master: str = Field("local[*]", description="local, local[N], local[*], cuda, or tcp:// / tls:// address")
    worker_memory: str = Field(
        "auto", description="memory limit of a local worker, as '4GiB'; auto: an equal share"
    )
    scratch_path: str | None = Field(None, description="folder on the local disk for Dask's own files")
    connect_timeout_s: Positive = 30
    hdfs_driver: Literal["native", "libhdfs"] = Field(
        "native", description="libhdfs needs a JVM and libhdfs.so"
    )


class Environment(WorkerPlugin):  # type: ignore[misc]  # distributed is untyped here
    """Prepares every worker, those that join later included: environment variables, signals.

    A terminal sends Ctrl-C to the workers on its machine as well. They leave it to the command, which ends
    them in order; else their nannies start them anew while the command closes them.
    """

    name = "graphmill-environment"

    def __init__(self, variables: dict[str, str], *, ignores_interrupts: bool) -> None:
        self.variables = variables
        self.ignores_interrupts = ignores_interrupts

    def setup(self, worker: Any) -> None:
        """Called by Dask on each worker."""
        os.environ.update(self.variables)
        if self.ignores_interrupts:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def connect(master: str | None, settings: ClusterConfig) -> Iterator[Client]:
    """A client of the cluster that `master` (default `settings.master`) names; what it started ends with it.

    Raises:
        ConfigError: `master` names nothing that is known.
        ClusterError: the cluster cannot be started or reached.
    """
    master = master or settings.master
    variables = {hdfs.DRIVER_VARIABLE: os.environ.get(hdfs.DRIVER_VARIABLE, settings.hdfs_driver)}
    os.environ.update(variables)
    with ExitStack() as stack:
        try:
            target = _target(master, settings, stack)
            client = stack.enter_context(Client(target, timeout=settings.connect_timeout_s))
        except (OSError, TimeoutError, RuntimeError) as error:
            raise ClusterError(f"--master {master}: the cluster does not answer: {error}") from error
        started_here = not _ADDRESS.match(master)
        client.register_plugin(Environment(variables, ignores_interrupts=started_here))
        _announce(client, master)
        yield client


def _target(master: str, settings: ClusterConfig, stack: ExitStack) -> Any:
    if _ADDRESS.match(master):
        return master
    stack.enter_context(
        dask.config.set({f"distributed.nanny.pre-spawn-environ.{k}": v for k, v in ENVIRONMENT.items()})
    )
    if local := re.fullmatch(r"local(?:\[(\d+|\*)\])?", master):
        return stack.enter_context(
            LocalCluster(
                n_workers=num_cores() if local[1] in (None, "*") else int(local[1]),
                threads_per_worker=1,
                memory_limit=settings.worker_memory,
                local_directory=settings.scratch_path,
                dashboard_address=ANY_PORT,
                silence_logs=logging.CRITICAL,
            )
        )
    if master == "cuda":
        try:
            from dask_cuda import LocalCUDACluster
        except ImportError as error:
            raise ClusterError(
                "--master cuda: dask-cuda is not installed; pip install 'graphmill[cuda]'"
            ) from error
        return stack.enter_context(
            LocalCUDACluster(local_directory=settings.scratch_path, dashboard_address=ANY_PORT)
        )
    raise ConfigError(
        f"--master {master}: expected local, local[N], local[*], cuda, tcp://HOST:PORT or tls://HOST:PORT"
    )


def _announce(client: Client, master: str) -> None:
    workers = client.scheduler_info(n_workers=-1)["workers"]
    shows_pages = importlib.util.find_spec("bokeh") is not None
    where = f", dashboard at {client.dashboard_link}" if shows_pages else ""
    log.info("cluster: %s, %d workers%s", master, len(workers), where)


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def run_tasks(
    client: Client,
    function: Callable[..., Result],
    arguments: Sequence[tuple[Any, ...]],
    *,
    description: str,
    unit: str = "tasks",
) -> list[Result]:
    """Run `function(*each)` for each of `arguments` as a Dask task; the results in the same order.

    The first error cancels the rest. A worker that dies costs its tasks only: Dask runs them again.

    Raises:
        ClusterError: a task took several workers down with it, or the cluster went away.
    """
    progress.tell(description, 0, len(arguments), unit)
    futures: list[Future] = [client.submit(function, *each, pure=False) for each in arguments]
    try:
        for number, future in enumerate(as_completed(futures), start=1):
            _result(future, description)
            progress.tell(description, number, len(arguments), unit)
        return [_result(future, description) for future in futures]
    finally:
        client.cancel(futures)


def run_task(client: Client, function: Callable[..., Result], *arguments: Any, description: str) -> Result:
    """Run one long Dask task, showing what it tells of its progress.

    Raises:
        ClusterError: the task took several workers down with it, or the cluster went away.
    """
    client.subscribe_topic(progress.TOPIC, _show_event)
    future = client.submit(function, *arguments, pure=False)
    try:
        result: Result = _result(future, description)
        return result
    finally:
        client.cancel([future])
        client.unsubscribe_topic(progress.TOPIC)


def _show_event(event: tuple[Any, dict[str, Any]]) -> None:
    told = {key: value for key, value in event[1].items() if key != "worker"}  # Dask adds the worker
    progress.show(progress.Tick(**told))


def _result(future: Future, description: str) -> Any:
    try:
        return future.result()
    except KilledWorker as error:
        raise ClusterError(
            f"{description}: the task's worker died {error.allowed_failures + 1} times, the last on "
            f"{error.last_worker.address if error.last_worker else 'an unknown address'}; "
            "a worker that exceeds its memory limit is killed: see cluster.worker_memory"
        ) from error
