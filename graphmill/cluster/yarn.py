"""`--master yarn`: workers in containers of the distributed shell, which every Hadoop ships.

    dask-submit ------------------------------ an edge node: the scheduler, and the client of each application
      |  application_1: num_workers containers    (more applications replace containers that YARN gave up)
      |    container: bash ExecScript.sh
      |      python -m distributed.cli.dask_worker --> connects to the scheduler

Dask restarts a worker process that dies. YARN restarts a container that ends with an error, on the same node.
YARN does not restart a container that is killed, preempted or out of memory: a further application replaces
all containers that are missing.
"""

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from distributed.utils import get_ip

from graphmill.cluster import container, hadoop
from graphmill.cluster.hadoop import Application
from graphmill.cluster.keys import Keys
from graphmill.cluster.local import scheduler_here
from graphmill.cluster.settings import is_driver
from graphmill.config.sections.cluster import ClusterConfig, YarnOptions
from graphmill.errors import ClusterError, GraphMillError
from graphmill.machine.interrupt import interruptible
from graphmill.storage import run_folder

log = logging.getLogger("graphmill")

_POLL_S = 0.5
_END_TIMEOUT_S = 20
_MAX_IN_VAIN = 3
_MAX_RETRIES = 10
_RETRIES_WITHIN_MS = 600_000

_LOOKS_AT_LOGS = 4
LOOK_S = 5

_ENDED = r"got container status for containerID={id}, state=COMPLETE, exitStatus=(-?\d+), diagnostics=(.*)"
_UNTOLD = "see yarn logs"


Look = tuple[float, int, bool]  # a time, the workers that are there, may others still come unasked


class ContainerEvents:
    """Remembers the containers that have had a worker, and logs changes."""

    def __init__(self, yarn: hadoop.YarnClient) -> None:
        self._yarn = yarn
        self._hosts: dict[str, str] = {}
        self._unreplaced: list[str] = []
        self._attempts: dict[str, int] = {}  # of application masters, by application

    def see(self, hosts: Mapping[str, str]) -> None:
        """Log which containers, given with their hosts, replace others, and new attempts of masters."""
        gone = [host for host in self._hosts if host not in hosts and host not in self._unreplaced]
        self._unreplaced = [name for name in [*self._unreplaced, *gone] if name not in hosts]
        for name in sorted(hosts.keys() - self._hosts.keys()):
            application, attempt = hadoop.application_of(name)
            if attempt > self._attempts.get(application, 1):
                log.warning("yarn: attempt %d of the application master of %s began", attempt, application)
                self._attempts[application] = attempt
            if self._unreplaced:
                before = self._unreplaced.pop(0)
                log.info(
                    "yarn: %s on %s replaces %s on %s", *(name, hosts[name], before, self._hosts.pop(before))
                )
        self._hosts |= hosts

    def missing(self, ending: threading.Event) -> str:
        """Describe the containers that are gone, with what YARN says of their ends.

        A master logs the end of a container a little later, and its log moves when it ends itself: this looks
        again until all ends are there, or the run is `ending`.
        """
        for _ in range(_LOOKS_AT_LOGS):
            applications = {hadoop.application_of(name)[0] for name in self._unreplaced}
            logs = {application: self._log_of(application) for application in applications}
            text = "; ".join(
                f"{name} on {self._hosts[name]}: {_end_of(name, logs[hadoop.application_of(name)[0]])}"
                for name in self._unreplaced
            )
            if _UNTOLD not in text or ending.wait(LOOK_S):
                break
        return text

    def _log_of(self, application: str) -> str:
        """Return the log of an application's masters: YARN tells the ends of containers nowhere else."""
        try:
            return self._yarn.master_logs(application)
        except ClusterError:  # a cluster without web services, or a log that has gone already
            return ""


def _end_of(container: str, text: str) -> str:
    if ended := re.search(_ENDED.format(id=container), text):
        return f"exit status {ended[1]}: {ended[2].strip()}"
    return f"{_UNTOLD} -applicationId {hadoop.application_of(container)[0]} -am ALL"


class _Place(NamedTuple):
    application: int
    host: str


def missing_for_long(looks: Iterable[Look], wanted: int, patience_s: float) -> Iterator[int]:
    """Yield how many workers are missing, whenever others are to be asked for; end where that is in vain.

    The wait doubles while that does not help.
    """
    grace_s, missing_since, num_in_vain = patience_s, None, 0
    for now_s, num_present, is_pending in looks:
        num_in_vain = 0 if num_present else num_in_vain
        if num_present >= wanted:
            grace_s = patience_s
        if num_present >= wanted or is_pending:
            missing_since = None
        elif missing_since is None:
            missing_since = now_s
        elif now_s - missing_since > grace_s:
            if num_in_vain == _MAX_IN_VAIN:
                return
            yield wanted - num_present
            missing_since, grace_s, num_in_vain = None, grace_s * 2, num_in_vain + 1


@dataclass
class Containers:
    """The applications of one run, which keep as many containers as the settings ask for."""

    settings: ClusterConfig
    keys: Keys | None
    cluster: Any
    folder: Path
    interrupt: Callable[[GraphMillError], None]

    def __post_init__(self) -> None:
        self._yarn = hadoop.find(self.settings.yarn_classpath, self.folder)
        self._localized = container.localized_files(self.settings, self.folder, self.keys)
        self._applications: list[Application] = []
        self._events = ContainerEvents(self._yarn)
        self._ending = threading.Event()
        self._keeper = threading.Thread(target=self._keep, daemon=True, name="yarn-containers")

    def start(self) -> None:
        """Submit the first application, and wait for its workers."""
        wanted, timeout_s = self.settings.num_workers, self.settings.start_timeout_s
        application = self._submit(wanted)
        deadline = time.monotonic() + timeout_s
        while (present := len(self._present())) < wanted:
            application.announce()
            application.check_memory("worker_memory")
            late = time.monotonic() > deadline
            if late and present:
                log.warning("yarn: %d of %d workers after %d s; going on", present, wanted, timeout_s)
                break
            if late or application.ended:
                waited = f"within {timeout_s} s" if late else "before the application ended"
                raise application.failure(f"no worker came {waited}")
            time.sleep(_POLL_S)
        application.was_complete = present >= wanted
        application.announce()
        self._keeper.start()

    def end(self, *, in_order: bool) -> None:
        """End all applications; with `in_order` they first get time to end by themselves."""
        self._ending.set()
        if self._keeper.is_alive():
            self._keeper.join()
        wait_s = _END_TIMEOUT_S if in_order else 0
        for application in self._applications:
            application.end(wait_s)
            wait_s = 5 if in_order else 0

    def _submit(self, num_containers: int) -> Application:
        number, name = len(self._applications), self.settings.name
        script_path = self.folder / f"worker-{number}.sh"
        address = self.cluster.scheduler_address
        script_path.write_text(container.script(self.settings, address, f"{name}-{number}", self.keys))
        arguments = self._shell_arguments(num_containers, script_path)
        log_path = self.folder / f"client-{number}.log"
        application = Application(self._yarn, name, num_containers, arguments, log_path)
        self._applications.append(application)
        return application

    def _shell_arguments(self, num_containers: int, script_path: Path) -> list[str]:
        settings = self.settings
        own: YarnOptions = {
            "container_memory": container.memory_mib(settings)[1],
            "container_vcores": settings.worker_cores,
            "container_retry_policy": 1,  # RETRY_ON_ALL_ERRORS; the option takes the number only
            "container_max_retries": _MAX_RETRIES,
            "container_retry_interval": 1000,
            "container_failures_validity_interval": _RETRIES_WITHIN_MS,
        }
        if settings.worker_gpus:
            own["container_resources"] = f"yarn.io/gpu={settings.worker_gpus}"
        return container.shell_arguments(
            settings, settings.name, num_containers, script_path, self._localized, own
        )

    def _present(self) -> dict[str, _Place]:
        name = re.compile(rf"{re.escape(self.settings.name)}-(\d+)-(container_\w+)")
        # The scheduler's thread changes this dict: copy it in one step, which its sorted view does not do.
        workers = list(dict.values(self.cluster.scheduler.workers))
        matches = ((worker, name.match(str(worker.name))) for worker in workers)
        return {match[2]: _Place(int(match[1]), worker.host) for worker, match in matches if match}

    def _keep(self) -> None:
        wanted, patience_s = self.settings.num_workers, float(self.settings.replace_after_s)
        try:
            for num_missing in missing_for_long(self._looks(), wanted, patience_s):
                self._replace(num_missing)
            if not self._ending.is_set():
                text = f"all workers are gone, and {_MAX_IN_VAIN} further applications brought none"
                reason = self._applications[-1].diagnosis()
                self.interrupt(ClusterError(f"--master yarn: {text}: {reason}"))
        except Exception as error:  # of this machine: the run would wait for workers that nobody asks for
            reason = f"{type(error).__name__}: {error}"
            self.interrupt(ClusterError(f"--master yarn: missing workers cannot be replaced: {reason}"))

    def _looks(self) -> Iterator[Look]:
        """Look at the workers until the run ends."""
        while not self._ending.wait(_POLL_S):
            present, last = self._present(), len(self._applications) - 1
            self._events.see({container: place.host for container, place in present.items()})
            application, own = self._applications[last], [place.application for place in present.values()]
            application.announce()
            is_pending = application.is_pending(own.count(last), self.settings.start_timeout_s)
            yield time.monotonic(), len(present), is_pending

    def _replace(self, num_missing: int) -> None:
        text = "yarn: workers that are missing: %d of %d; asking for others; %s"
        log.warning(text, num_missing, self.settings.num_workers, self._applications[-1].diagnosis())
        self._submit(num_missing)
        if missing := self._events.missing(self._ending):
            log.warning("yarn: missing are %s", missing)


@contextmanager
def yarn_cluster(master: str, settings: ClusterConfig, keys: Keys | None) -> Iterator[Any]:
    """Run a scheduler in this process, and workers in YARN containers, during the block."""
    # In a container, cluster.host would be that of the machine that has submitted the driver.
    host = get_ip() if is_driver() else settings.host or get_ip()
    with (
        interruptible() as interrupt,
        run_folder.temporary() as folder,
        scheduler_here(settings, keys, host=host, n_workers=0) as cluster,
    ):
        containers = Containers(settings, keys, cluster, Path(folder), interrupt)
        try:
            containers.start()
            yield cluster
        except BaseException:
            containers.end(in_order=False)
            raise
        # Workers end with their scheduler, and the applications with their workers.
        cluster.close()
        containers.end(in_order=True)
