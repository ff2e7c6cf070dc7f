"""A real HDFS in a child process, for tests."""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from tests.hadoop.jars import ensure_jars

MAIN_PATH = Path(__file__).with_name("MiniCluster.java")
WAIT_S = 600.0  # in tests, for what is to come
STOP_TIMEOUT_S = 10.0
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
        java = Path(shutil.which("java")).resolve()
        command = [str(java), "-Xmx512m", *QUICK_START.split()]
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
                env={**os.environ, "JAVA_HOME": str(java.parents[1])},  # for YARN's application masters
                stdin=subprocess.PIPE,  # its end is the signal to die
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C must not end it before the tests' own clean-up
            )
        try:
            self.uri = self._answer(r"^READY (hdfs://\S+)\n")
        except BaseException:
            self.close()
            raise

    def tell(self, command: str) -> list[str]:
        """Have the cluster do what MiniCluster.java knows by this name; the lines that it answers."""
        begin = self.log_path.stat().st_size
        self.process.stdin.write(f"{command}\n".encode())
        self.process.stdin.flush()
        return self._answer(rf"^BEGIN {command}\n(.*?)^DONE {command}\n", begin).splitlines()

    def close(self) -> None:
        """End the process and wait for its end."""
        self.process.stdin.close()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _answer(self, pattern: str, begin: int = 0) -> str:
        """The group of a pattern that the log will have, from this byte on, or a RuntimeError."""
        deadline = time.monotonic() + WAIT_S
        while True:
            exit_code = self.process.poll()
            log = self.log_path.read_bytes()[begin:].decode(errors="replace")
            if found := re.search(pattern, log, re.MULTILINE | re.DOTALL):
                return found[1]
            if exit_code is not None or time.monotonic() > deadline:
                tail = "\n".join(log.splitlines()[-LOG_TAIL_LINES:])
                raise RuntimeError(f"expected {pattern}, found none; exit code: {exit_code}:\n{tail}")
            time.sleep(0.05)
