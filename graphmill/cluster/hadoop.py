"""Commands of the YARN client on this machine, and one application of its distributed shell.

With `cluster.yarn_classpath` they run as `java -cp HADOOP_CONF_DIR:CLASSPATH`; otherwise by the command
`yarn` of HADOOP_YARN_HOME or HADOOP_HOME, or on the PATH.
"""

import getpass
import logging
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from graphmill import storage
from graphmill.errors import ClusterError, ConfigError, GraphMillError, NoClusterError

CONF_VARIABLE = "HADOOP_CONF_DIR"
SHELL_CLIENT = "org.apache.hadoop.yarn.applications.distributedshell.Client"
APPLICATION_CLI = "org.apache.hadoop.yarn.client.cli.ApplicationCLI"
LOGS_CLI = "org.apache.hadoop.yarn.client.cli.LogsCLI"

COMMAND_TIMEOUT_S = 120

_SHELL_JAR = "hadoop-yarn-applications-distributedshell*.jar"
_CORE_SITE = "core-site.xml"
_POLL_S = 0.5
_ID_TIMEOUT_S = 20

log = logging.getLogger("graphmill")


@dataclass(frozen=True)
class YarnClient:
    """Start of YARN's commands, and the jar of its distributed shell."""

    prefix: tuple[str, ...]  # `yarn`, or java with its class path
    shell_jar_path: str
    conf_dir: str

    @property
    def environment(self) -> dict[str, str]:
        """Environment of the commands."""
        return {**os.environ, CONF_VARIABLE: self.conf_dir}

    def shell_command(self, arguments: Sequence[str]) -> list[str]:
        """Return the command that submits an application of the distributed shell and waits for its end."""
        start = self._start(SHELL_CLIENT, "jar", self.shell_jar_path, SHELL_CLIENT)
        return [*start, "-jar", self.shell_jar_path, *arguments]

    def is_over(self, application_id: str) -> bool:
        """Tell whether the application has ended; False if YARN is too slow to say so now."""
        command = [*self._start(APPLICATION_CLI), "application", "-status", application_id]
        try:
            output = _output(command, f"{application_id}:")
        except ClusterError as error:
            if not isinstance(error.__cause__, subprocess.TimeoutExpired):
                raise
            log.warning("yarn: %s", error)
            return False
        state = re.search(r"^\s*State : (\w+)", output, re.MULTILINE)
        return state is not None and state[1] in ("FINISHED", "FAILED", "KILLED")

    def master_logs(self, application_id: str) -> str:
        """Return the logs of all attempts of the application master."""
        options = ["-applicationId", application_id, "-am", "ALL", "-log_files", "AppMaster.stderr"]
        command = [*self._start(LOGS_CLI, "logs"), *options]
        return _output(command, f"yarn logs: {application_id}:")

    def kill(self, application_id: str) -> None:
        """Kill the application if it still runs."""
        command = [*self._start(APPLICATION_CLI), "application", "-kill", application_id]
        _output(command, f"{application_id} may still be running: `yarn application -kill`")

    def _start(self, java_class: str, *words: str) -> list[str]:
        """Begin a command: java takes the class, Hadoop's script `yarn` the words for it."""
        return [*self.prefix, *([java_class] if len(self.prefix) > 1 else words)]


def application_of(container: str) -> tuple[str, int]:
    """Return the application of a container, and the attempt of its master, by the container's id.

    An id is such as `container_1795176752464_0001_01_000002`, or `container_e17_...` after restarts of YARN.
    """
    match = re.fullmatch(r"container_(?:e\d+_)?(\d+_\d+)_(\d+)_\d+", container)
    if match is None:
        raise ValueError(f"expected the id of a container of YARN, found {container!r}")
    return f"application_{match[1]}", int(match[2])


def find(classpath: str | None, folder: Path) -> YarnClient:
    """Find the YARN client of this machine, and write its configuration to `folder`."""
    conf_dir = os.environ.get(CONF_VARIABLE)
    if not conf_dir or not Path(conf_dir, "yarn-site.xml").is_file():
        raise ConfigError(
            f"--master yarn: {CONF_VARIABLE} must be a folder with yarn-site.xml, found {conf_dir!r}"
        )
    if classpath:
        jar_path = _shell_jar(classpath)
        private = private_conf(Path(conf_dir), folder)
        named = f"{home}/bin/java" if (home := os.environ.get("JAVA_HOME")) else "java"
        if (java := shutil.which(named)) is None:
            raise ConfigError(f"--master yarn: no command {named}; set JAVA_HOME to a folder of a JDK or JRE")
        return YarnClient((java, "-cp", f"{private}:{classpath}"), jar_path, private)
    yarn = _yarn_command()
    jar_path = _shell_jar(_output([yarn, "classpath"], f"--master yarn: `{yarn} classpath`"))
    return YarnClient((yarn,), jar_path, private_conf(Path(conf_dir), folder))


def private_conf(conf_dir: Path, folder: Path) -> str:
    """Copy HADOOP_CONF_DIR to `folder`, with a umask that gives new files on HDFS to their owner alone.

    The distributed shell uploads the files of containers, among them keys. Only the umask of its
    configuration decides their permissions.
    """
    copy = folder / "hadoop-conf"
    copy.mkdir()
    for path in conf_dir.iterdir():
        if path.name != _CORE_SITE:
            (copy / path.name).symlink_to(path.absolute())
    original = conf_dir / _CORE_SITE
    text = original.read_text() if original.is_file() else "<configuration/>"
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ConfigError(f"{original}: expected Hadoop's configuration in XML: {error}") from error
    umask = ElementTree.Element("property")  # final: no file that Hadoop reads later changes the umask
    for key, value in (("name", "fs.permissions.umask-mode"), ("value", "077"), ("final", "true")):
        ElementTree.SubElement(umask, key).text = value
    root.insert(0, umask)
    ElementTree.ElementTree(root).write(copy / _CORE_SITE)
    return str(copy)


def _yarn_command() -> str:
    homes = (os.environ.get(variable) for variable in ("HADOOP_YARN_HOME", "HADOOP_HOME"))
    commands = (Path(home, "bin", "yarn") for home in homes if home)
    path = next((str(path) for path in commands if path.is_file()), None) or shutil.which("yarn")
    if path is None:
        raise ConfigError(
            "--master yarn: no command `yarn` in HADOOP_HOME/bin or on the PATH; set HADOOP_HOME, or "
            "cluster.yarn_classpath to the jars of YARN's client"
        )
    return path


def _shell_jar(classpath: str) -> str:
    for entry in classpath.strip().split(os.pathsep):
        folder = Path(entry.removesuffix("*"))
        for jar in [folder] if folder.suffix == ".jar" else sorted(folder.glob(_SHELL_JAR)):
            if re.fullmatch(r"hadoop-yarn-applications-distributedshell(-[\d.]+.*)?\.jar", jar.name):
                return str(jar)
    raise ConfigError(f"--master yarn: no {_SHELL_JAR} on YARN's class path: {classpath.strip()[:500]}")


def _output(command: Sequence[str], description: str) -> str:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
            start_new_session=True,  # a terminal sends Ctrl-C to this command alone
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClusterError(f"{command[0]}: YARN's client does not work: {error}") from error
    if done.returncode != 0:
        reason = f"{done.stderr}{done.stdout}".strip()[-500:]  # where the log is, and often the reason
        raise ClusterError(f"{description} ended with exit code {done.returncode}: {reason}")
    return done.stdout


def home_uri() -> str:
    """Return the folder of this user on HDFS, where YARN's client uploads the files of containers."""
    try:
        return f"hdfs:///user/{os.environ.get('HADOOP_USER_NAME') or getpass.getuser()}"
    except (KeyError, OSError) as error:
        text = f"HADOOP_USER_NAME: expected a name, and the user {os.getuid()} has none; set it"
        raise ConfigError(text) from error


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

    yarn: YarnClient
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
        """Tell whether the application has ended."""
        return self._client.poll() is not None

    def is_pending(self, num_present: int, timeout_s: float) -> bool:
        """Tell whether containers may still come, within `timeout_s` and until all have been there."""
        self.was_complete |= num_present >= self.num_containers
        return not self.was_complete and not self.ended and time.monotonic() - self.submitted < timeout_s

    def announce(self) -> None:
        """Log the name of the application and of its logs, once."""
        if not self._is_announced and (identity := self.id):
            self._is_announced = True
            log.info("yarn: %s; logs: yarn logs -applicationId %s", identity, identity)
            asked, most = self._asked_and_most("vcores", "virtual cores")
            if asked > most:
                log.warning(
                    f"yarn: a worker uses {asked} cores, and a container gets {most} vcores at most "
                    "(yarn.scheduler.maximum-allocation-vcores): nodes may have more work than cores"
                )

    def check_memory(self, key: str) -> None:
        """Raise ConfigError if containers get less than the setting `key` asks for: YARN raises none."""
        asked, most = self._asked_and_most("memory", "mem")
        if asked > most:
            raise ConfigError(
                f"cluster.{key}: expected a container of at most {most} MiB, the most that this YARN "
                f"gives (yarn.scheduler.maximum-allocation-mb), found {asked} MiB; ask for less"
            )

    def _asked_and_most(self, option: str, name: str) -> tuple[int, int]:
        """Return what a container asks for, and the most that YARN's client says to get."""
        asked = int(self.arguments[self.arguments.index(f"-container_{option}") + 1])
        most = re.search(rf"Max {name} capab\w+ of resources in this cluster (\d+)", self._output())
        return asked, int(most[1]) if most else asked

    def diagnosis(self) -> str:
        """Describe the state of the application for an error message."""
        output = self._output()
        reports = re.findall(
            r"(?s)appDiagnostics=(.*?), appMasterHost=.*?, appQueue=(.*?),.*?"
            r"yarnAppState=(\w+), distributedFinalState=(\w+), appTrackingUrl=(.*?),",
            output,
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
            except ClusterError as error:  # what else the run has to end must end too
                log.error("yarn: %s", error)
            finally:
                self._client.kill()
                self._client.wait()
        with suppress(GraphMillError, OSError):  # remaining files harm nobody
            if self.id:  # a killed application master leaves the files that YARN's client uploaded
                storage.delete(storage.join(home_uri(), self.name, self.id))

    def _wait_for_id(self) -> None:
        deadline = time.monotonic() + _ID_TIMEOUT_S
        while self.id is None and not self.ended and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def _output(self) -> str:
        return self.log_path.read_text(errors="replace")
