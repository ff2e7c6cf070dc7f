"""One application of YARN's distributed shell: submitted, watched, ended."""

import getpass
import logging
import os
import re
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from graphmill import storage
from graphmill.cluster import hadoop
from graphmill.errors import GraphMillError

log = logging.getLogger("graphmill")

_POLL_S = 0.5
_ID_TIMEOUT_S = 20


class Application:
    """One application of the distributed shell, and the process of its client, which watches it."""

    def __init__(
        self, yarn: hadoop.YarnClient, name: str, num_containers: int, arguments: list[str], log_path: Path
    ) -> None:
        self.num_containers = num_containers
        self.submitted = time.monotonic()
        self.was_complete = False  # whether all its containers have come once
        self._is_announced = False
        self._yarn = yarn
        self._name = name
        self._log_path = log_path
        with log_path.open("wb") as output:
            self._client = subprocess.Popen(
                yarn.shell_command(arguments),
                env=yarn.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C must not end it before the application
            )

    @property
    def id(self) -> str | None:
        """As `application_1795176752464_0001`, once YARN has given it."""
        found = re.search(r"Submitted application (application_\d+_\d+)", self._output())
        return found[1] if found else None

    def announce(self) -> None:
        """Log once what it is called, and where its logs are."""
        if not self._is_announced and (identity := self.id):
            self._is_announced = True
            log.info("yarn: %s; logs: yarn logs -applicationId %s", identity, identity)

    @property
    def ended(self) -> bool:
        """Whether YARN has nothing more to do for it."""
        return self._client.poll() is not None

    def diagnosis(self) -> str:
        """What is known of its state, for an error message."""
        output = self._output()
        found = re.findall(
            r"appDiagnostics=(.*?), appMasterHost=.*?, appQueue=(.*?),.*?"
            r"yarnAppState=(\w+), distributedFinalState=(\w+), appTrackingUrl=(.*?),",
            output,
            re.DOTALL,
        )
        if not found or self.id is None:
            told = [line for line in output.splitlines() if not re.match(r"\s+(at |\.\.\. )", line)]
            tail = "\n".join(line[:500] for line in told[-12:])
            return f"YARN's client wrote:\n{tail}"
        diagnostics, queue, state, final, url = found[-1]
        return (
            f"{self.id} in queue {queue} is {state}, {final}; diagnostics: {diagnostics.strip() or 'none'}\n"
            f"see {url} and `yarn logs -applicationId {self.id}`"
        )

    def end(self, wait_s: float) -> None:
        """Give it `wait_s` to end by itself, then kill it.

        Raises:
            ClusterError: YARN did not do it.
        """
        try:
            self._client.wait(wait_s)
        except subprocess.TimeoutExpired:
            self._wait_for_id()
            try:
                if self.id:
                    self._yarn.kill(self.id)
            finally:
                self._client.kill()
                self._client.wait()
        self._delete_files()

    def _delete_files(self) -> None:
        # The application master deletes what was uploaded for it, unless it is killed.
        with suppress(GraphMillError, KeyError, OSError):  # untidy, and no more than that
            user = os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
            if self.id:
                storage.delete(f"hdfs:///user/{user}/{self._name}/{self.id}")

    def _wait_for_id(self) -> None:
        # A client that is ended while it submits may or may not have submitted.
        deadline = time.monotonic() + _ID_TIMEOUT_S
        while self.id is None and not self.ended and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def _output(self) -> str:
        return self._log_path.read_text(errors="replace")
