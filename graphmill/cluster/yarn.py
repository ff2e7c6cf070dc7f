"""`--master yarn`: workers in containers of the distributed shell, which every Hadoop ships.

    dask-submit ------------------------------ an edge node: the scheduler, and the client of each application
      |  application_1: num_workers containers    (more applications follow for containers that YARN gave up)
      |    container: bash ExecScript.sh
      |      python -m distributed.cli.dask_worker --> dials back to the scheduler

A worker process that dies is started again by Dask; a container that ends with an error, by YARN on the
same node. One that YARN lets go for good (killed, preempted, out of its memory) is replaced by a further
application for the number that is missing.
"""

import logging
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distributed.utils import get_ip

from graphmill.cluster import container, hadoop
from graphmill.cluster.application import Application
from graphmill.cluster.keys import Keys
from graphmill.cluster.local import scheduler_here
from graphmill.cluster.settings import ClusterConfig
from graphmill.errors import ClusterError, GraphMillError
from graphmill.machine import run_folder
from graphmill.machine.interrupt import interruptible

log = logging.getLogger("graphmill")

_POLL_S = 0.5
_END_TIMEOUT_S = 20
_MASTER_MIB = 512
_MAX_IN_VAIN = 3
_MAX_RETRIES = 10
_RETRIES_WITHIN_MS = 600_000
_NEVER_MS = 2**31 - 1  # the distributed shell's own limit is ten minutes


class Containers:
    """The applications of one run: as many containers as were asked for, for as long as the block lasts."""

    def __init__(
        self,
        settings: ClusterConfig,
        keys: Keys | None,
        cluster: Any,
        folder: Path,
        interrupt: Callable[[GraphMillError], None],
    ) -> None:
        self._interrupt = interrupt
        self._settings = settings
        self._cluster = cluster
        self._folder = folder
        self._keys = keys
        self._yarn = hadoop.find(settings.yarn_classpath, folder)
        self._localized = container.localized_files(settings, folder, keys)
        self._applications: list[Application] = []
        self._ending = threading.Event()
        self._keeper = threading.Thread(target=self._keep, daemon=True, name="yarn-containers")

    def start(self) -> None:
        """Submit, and wait for the workers.

        Raises:
            ClusterError: none has come in time; the message quotes YARN.
        """
        settings = self._settings
        application = self._submit(settings.num_workers)
        deadline = time.monotonic() + settings.start_timeout_s
        while (present := len(self._present())) < settings.num_workers:
            application.announce()
            late = time.monotonic() > deadline
            if late and present:
                log.warning(
                    "yarn: %d of %d workers after %d s; going on with these",
                    present,
                    settings.num_workers,
                    settings.start_timeout_s,
                )
                break
            if late or application.ended:
                waited = f"within {settings.start_timeout_s} s" if late else "before the application ended"
                raise ClusterError(f"--master yarn: no worker came {waited}: {application.diagnosis()}")
            time.sleep(_POLL_S)
        application.announce()
        self._keeper.start()

    def end(self, *, in_order: bool) -> None:
        """End all applications; those of an orderly end have a while to end by themselves."""
        self._ending.set()
        if self._keeper.is_alive():
            self._keeper.join()
        wait_s = _END_TIMEOUT_S if in_order else 0
        for application in self._applications:
            try:
                application.end(wait_s)
            except ClusterError as error:  # the others must end all the same
                log.error("yarn: %s", error)
            wait_s = 0 if not in_order else 5

    def _submit(self, num_containers: int) -> Application:
        number = len(self._applications)
        script_path = self._folder / f"worker-{number}.sh"
        address = self._cluster.scheduler_address
        name = f"{self._settings.name}-{number}"
        script_path.write_text(container.script(self._settings, address, name, self._keys))
        arguments = _shell_arguments(self._settings, num_containers, script_path, self._localized)
        log_path = self._folder / f"client-{number}.log"
        application = Application(self._yarn, self._settings.name, num_containers, arguments, log_path)
        self._applications.append(application)
        return application

    def _present(self) -> dict[str, int]:
        """The containers that have a worker, and the number of the application that each is of."""
        named = re.compile(rf"{re.escape(self._settings.name)}-(\d+)-(container_\w+)")
        # The scheduler's own thread changes it: a copy in one step, which its sorted view is not.
        workers = list(dict.values(self._cluster.scheduler.workers))
        found = (named.match(str(worker.name)) for worker in workers)
        return {each[2]: int(each[1]) for each in found if each}

    def _keep(self) -> None:
        """Replace what YARN lets go, ever more slowly where that does not help, and in the end give up."""
        patience_s = grace_s = float(self._settings.replace_after_s)
        missing_since: float | None = None
        num_in_vain = 0
        while not self._ending.wait(_POLL_S):
            present = self._present()
            num_missing = self._settings.num_workers - len(present)
            num_in_vain = 0 if present else num_in_vain
            now = time.monotonic()
            self._applications[-1].announce()
            if num_missing <= 0:
                grace_s = patience_s
            if num_missing <= 0 or self._is_pending(present):
                missing_since = None
            elif missing_since is None:
                missing_since = now
            elif now - missing_since > grace_s:
                if num_in_vain == _MAX_IN_VAIN:
                    self._give_up()
                    return
                self._replace(num_missing)
                missing_since, grace_s, num_in_vain = None, grace_s * 2, num_in_vain + 1

    def _is_pending(self, present: dict[str, int]) -> bool:
        """Whether containers of the last application are still to come."""
        number = len(self._applications) - 1
        last = self._applications[number]
        last.was_complete |= list(present.values()).count(number) >= last.num_containers
        waited_s = time.monotonic() - last.submitted
        return not last.was_complete and not last.ended and waited_s < self._settings.start_timeout_s

    def _replace(self, num_missing: int) -> None:
        log.warning(
            "yarn: %d of %d workers are missing, asking for others; %s",
            num_missing,
            self._settings.num_workers,
            self._applications[-1].diagnosis(),
        )
        self._submit(num_missing)

    def _give_up(self) -> None:
        self._interrupt(
            ClusterError(
                f"--master yarn: all workers are gone, and {_MAX_IN_VAIN} further applications brought none: "
                f"{self._applications[-1].diagnosis()}"
            )
        )


@contextmanager
def yarn_cluster(master: str, settings: ClusterConfig, keys: Keys | None) -> Iterator[Any]:
    """Start a scheduler in this process, and workers in YARN containers; all end with the block.

    Raises:
        ConfigError: this machine has no YARN client, or a setting is wrong.
        ClusterError: no worker came in time.
    """
    with (
        interruptible() as interrupt,
        tempfile.TemporaryDirectory(dir=run_folder.path()) as folder,
        scheduler_here(settings, keys, host=settings.host or get_ip(), n_workers=0) as cluster,
    ):
        containers = Containers(settings, keys, cluster, Path(folder), interrupt)
        try:
            containers.start()
            yield cluster
        except BaseException:
            containers.end(in_order=False)
            raise
        # Workers leave when their scheduler does, and the applications end with them.
        cluster.close()
        containers.end(in_order=True)


def _shell_arguments(
    settings: ClusterConfig, num_containers: int, script_path: Path, localized: list[str]
) -> list[str]:
    options = {
        "appname": settings.name,
        "num_containers": num_containers,
        "container_memory": container.memory_mib(settings)[1],
        "container_vcores": settings.worker_cores,
        "master_memory": _MASTER_MIB,
        "master_vcores": 1,
        "shell_script": script_path,
        "timeout": _NEVER_MS,
        "container_retry_policy": 1,  # RETRY_ON_ALL_ERRORS, which it takes as a number only
        "container_max_retries": _MAX_RETRIES,
        "container_retry_interval": 1000,
        "container_failures_validity_interval": _RETRIES_WITHIN_MS,
    }
    if localized:
        options["localize_files"] = ",".join(localized)
    if settings.queue:
        options["queue"] = settings.queue
    if settings.worker_gpus:
        options["container_resources"] = f"yarn.io/gpu={settings.worker_gpus}"
    return [word for key, value in options.items() for word in (f"-{key}", str(value))]
