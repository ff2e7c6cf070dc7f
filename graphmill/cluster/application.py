"""One application of YARN's distributed shell: submit, watch, end."""

import getpass
import logging
import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from graphmill import storage
from graphmill.cluster import hadoop
from graphmill.errors import ConfigError, GraphMillError, NoClusterError

log = logging.getLogger("graphmill")

_POLL_S = 0.5
_ID_TIMEOUT_S = 20


def home_uri() -> str:
    """Return the folder of this user on HDFS, where YARN's client uploads the files of containers."""
    return f"hdfs:///user/{os.environ.get('HADOOP_USER_NAME') or getpass.getuser()}"


def shell_words(options: Mapping[str, bool | int | str | Sequence[str]]) -> list[str]:
    """Return options of the distributed shell's client as words: True is a flag, a list is repeated."""
    words = []
    for key, value in options.items():
        if isinstance(value, bool):
            words += [f"-{key}"] if value else []
        else:
            values = [str(value)] if isinstance(value, int | str) else value
            words += [word for text in values for word in (f"-{key}", text)]
    return words


@dataclass
class Application:
    """One application, and the process of its client, which ends with the application."""

    yarn: hadoop.YarnClient
    name: str
    num_containers: int
    arguments: list[str]
    log_path: Path
    was_complete: bool = False  # all containers have had a worker at the same time

    def __post_init__(self) -> None:
        self.submitted = time.monotonic()
        self._is_announced = False
        with self.log_path.open("wb") as output:
            self._client = subprocess.Popen(
                self.yarn.shell_command(self.arguments),
                env=self.yarn.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C must not end the client before the application
            )

    @property
    def id(self) -> str | None:
        """Name such as `application_1795176752464_0001`, once YARN has given it."""
        match = re.search(r"Submitted application (application_\d+_\d+)", self._output())
        return match[1] if match else None

    @property
    def ended(self) -> bool:
        """Whether the application has ended."""
        return self._client.poll() is not None

    def announce(self) -> None:
        """Log the name of the application and of its logs, once."""
        if not self._is_announced and (identity := self.id):
            self._is_announced = True
            log.info("yarn: %s; logs: yarn logs -applicationId %s", identity, identity)

    def diagnosis(self) -> str:
        """Describe the state of the application for an error message."""
        output = self._output()
        reports = re.findall(
            r"appDiagnostics=(.*?), appMasterHost=.*?, appQueue=(.*?),.*?"
            r"yarnAppState=(\w+), distributedFinalState=(\w+), appTrackingUrl=(.*?),",
            output,
            re.DOTALL,
        )
        if not reports or self.id is None:
            # Without stack traces, and the usage that follows a wrong option.
            lines = [line for line in output.splitlines() if not re.match(r"\s|usage: ", line)]
            tail = "\n".join(line[:500] for line in lines[-12:])
            return f"YARN's client wrote:\n{tail}"
        diagnostics, queue, state, final, url = reports[-1]
        return (
            f"{self.id} in queue {queue} is {state}, {final}; diagnostics: {diagnostics.strip() or 'none'}\n"
            f"see {url} and `yarn logs -applicationId {self.id}`"
        )

    def failure(self, what: str) -> GraphMillError:
        """Return the error of an application that does not do what it should; `what` begins its message."""
        if refused := re.search(r"UnrecognizedOptionException: (.*)", self._output()):
            return ConfigError(f"cluster.yarn_options: the client of YARN's distributed shell: {refused[1]}")
        return NoClusterError(f"--master yarn: {what}: {self.diagnosis()}")

    def leave(self) -> None:
        """End the client, but not the application, which is submitted first."""
        self._wait_for_id()
        self._client.kill()
        self._client.wait()

    def end(self, wait_s: float) -> None:
        """Kill the application, unless it ends by itself within `wait_s`."""
        try:
            self._client.wait(wait_s)
        except subprocess.TimeoutExpired:
            self._wait_for_id()
            try:
                if self.id:
                    self.yarn.kill(self.id)
            finally:
                self._client.kill()
                self._client.wait()
        self._delete_files()

    def _delete_files(self) -> None:
        """Delete the files that YARN's client uploaded: a killed application master leaves them."""
        with suppress(GraphMillError, KeyError, OSError):  # remaining files harm nobody
            if self.id:
                storage.delete(storage.join(home_uri(), self.name, self.id))

    def _wait_for_id(self) -> None:
        """Wait until a client that is submitting has submitted: an end before leaves the outcome unknown."""
        deadline = time.monotonic() + _ID_TIMEOUT_S
        while self.id is None and not self.ended and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def _output(self) -> str:
        return self.log_path.read_text(errors="replace")
