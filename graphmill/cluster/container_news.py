"""News of the containers of a run, for its log: which are gone and why, and what replaces them."""

import logging
import re
from collections.abc import Mapping

from graphmill.cluster import hadoop
from graphmill.errors import ClusterError

_ENDED = r"got container status for containerID={id}, state=COMPLETE, exitStatus=(-?\d+), diagnostics=(.*)"

log = logging.getLogger("graphmill")


class ContainerNews:
    """Remembers the containers that have had a worker, and tells what changes."""

    def __init__(self, yarn: hadoop.YarnClient) -> None:
        self._yarn = yarn
        self._hosts: dict[str, str] = {}
        self._unreplaced: list[str] = []
        self._attempts: dict[str, int] = {}  # of application masters, by application

    def see(self, hosts: Mapping[str, str]) -> None:
        """Tell which of the containers with a worker, and their hosts, replace others."""
        gone = [each for each in self._hosts if each not in hosts and each not in self._unreplaced]
        self._unreplaced = [each for each in [*self._unreplaced, *gone] if each not in hosts]
        for container in sorted(hosts.keys() - self._hosts.keys()):
            self._see_attempt(container)
            if self._unreplaced:
                before = self._unreplaced.pop(0)
                log.info(
                    "yarn: %s on %s replaces %s on %s",
                    *(container, hosts[container], before, self._hosts.pop(before)),
                )
        self._hosts |= hosts

    def missing(self) -> str:
        """Describe the containers that are gone, with what YARN says of their ends."""
        applications = {hadoop.application_of(each)[0] for each in self._unreplaced}
        logs = {application: self._log_of(application) for application in applications}
        return "; ".join(
            f"{each} on {self._hosts[each]}: {_end_of(each, logs[hadoop.application_of(each)[0]])}"
            for each in self._unreplaced
        )

    def _see_attempt(self, container: str) -> None:
        """Tell that an application master has started again: the ids of its containers name its attempt."""
        application, attempt = hadoop.application_of(container)
        if attempt > self._attempts.get(application, 1):
            log.warning("yarn: attempt %d of the application master of %s began", attempt, application)
            self._attempts[application] = attempt

    def _log_of(self, application: str) -> str:
        """Return the log of an application's masters: YARN tells the ends of containers nowhere else."""
        try:
            return self._yarn.master_logs(application)
        except ClusterError:  # a cluster without web services, or a log that has gone already
            return ""


def _end_of(container: str, text: str) -> str:
    if ended := re.search(_ENDED.format(id=container), text):
        return f"exit status {ended[1]}: {ended[2].strip()}"
    return f"see yarn logs -applicationId {hadoop.application_of(container)[0]} -am ALL"
