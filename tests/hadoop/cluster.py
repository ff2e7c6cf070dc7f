"""A real HDFS in a child process, for tests."""

import os
import re
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from tests.hadoop.jars import ensure_jars, java_home

MAIN_PATH = Path(__file__).with_name("MiniCluster.java")
WAIT_S = 600.0  # in tests, for what is to come
START_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 10.0
COMMAND_TIMEOUT_S = 300.0
LOG_TAIL_LINES = 40
# Of programs that live for seconds: what would pay after minutes costs a quarter of their time.
QUICK_START = "-XX:+UseSerialGC -XX:-UsePerfData -XX:TieredStopAtLevel=1"


class MiniHdfs:
    """One namenode and some datanodes on loopback, alive until `close` or until this process dies.

    The user who runs it is HDFS's superuser. Its files lie under `base_path`:

        base_path/
            conf/core-site.xml, hdfs-site.xml   for clients: what HADOOP_CONF_DIR wants
            dfs/                                the namenode's and the datanodes' own files
            log.txt
            tmp/
    """

    def __init__(
        self, base_path: Path, *, num_datanodes: int = 1, settings: Mapping[str, str] | None = None
    ) -> None:
        """Start, with `settings` over Hadoop's defaults, and wait until clients can connect.

        Raises: HadoopUnavailableError without jars; RuntimeError with the log's end when it does not start.
        """
        self.conf_dir = base_path / "conf"
        self.log_path = base_path / "log.txt"
        temporary_path = base_path / "tmp"
        temporary_path.mkdir(parents=True)
        command = ["java", "-Xmx512m", *QUICK_START.split()]
        command += ["--add-opens=java.base/java.lang=ALL-UNNAMED"]  # YARN's web pages define classes
        command += ["-Djava.net.preferIPv4Stack=true", f"-Djava.io.tmpdir={temporary_path}"]
        command += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        command += ["-cp", f"{ensure_jars()}/*", str(MAIN_PATH)]
        command += [str(base_path / "dfs"), str(self.conf_dir), str(num_datanodes)]
        command += [f"{key}={value}" for key, value in (settings or {}).items()]
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=base_path,
                env={**os.environ, "JAVA_HOME": java_home()},  # for YARN's application masters
                stdin=subprocess.PIPE,  # its end is the signal to die
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C must not end it before the tests' own clean-up
            )
        try:
            self.uri = self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    def tell(self, command: str) -> list[str]:
        """Have the cluster do what MiniCluster.java knows by this name; the lines that it answers."""
        begin = self.log_path.stat().st_size
        self.process.stdin.write(f"{command}\n".encode())
        self.process.stdin.flush()
        answer = re.compile(rf"^BEGIN {command}\n(.*?)^DONE {command}\n", re.MULTILINE | re.DOTALL)
        deadline = time.monotonic() + COMMAND_TIMEOUT_S
        while time.monotonic() < deadline:
            log = self.log_path.read_bytes()[begin:].decode(errors="replace")
            if found := answer.search(log):
                return found[1].splitlines()
            time.sleep(0.05)
        raise RuntimeError(f"{command}: no answer in {COMMAND_TIMEOUT_S:.0f} s:\n{_tail(log)}")

    def close(self) -> None:
        """End the process and wait for its end."""
        self.process.stdin.close()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _wait_until_ready(self) -> str:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            exit_code = self.process.poll()
            log = self.log_path.read_text(errors="replace")
            if ready := re.search(r"^READY (hdfs://\S+)\n", log, re.MULTILINE):
                return ready[1]
            if exit_code is not None:
                raise RuntimeError(f"HDFS ended with {exit_code} instead of starting:\n{_tail(log)}")
            time.sleep(0.05)
        raise RuntimeError(f"HDFS was not ready after {START_TIMEOUT_S:.0f} s:\n{_tail(log)}")


def _tail(log: str) -> str:
    return "\n".join(log.splitlines()[-LOG_TAIL_LINES:])


def environment_of(cluster: MiniHdfs, **variables: str) -> dict[str, str]:
    """This process's environment, with `cluster` as Hadoop."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GRAPHMILL_")}
    return {**kept, "HADOOP_CONF_DIR": str(cluster.conf_dir), **variables}
