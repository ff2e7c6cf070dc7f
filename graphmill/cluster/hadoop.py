"""The commands of YARN's client, as this machine has them.

With `cluster.yarn_classpath` they run as `java -cp HADOOP_CONF_DIR:CLASSPATH`; else by the command `yarn` of
HADOOP_YARN_HOME or HADOOP_HOME, or of the PATH.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from graphmill.errors import ClusterError, ConfigError

CONF_VARIABLE = "HADOOP_CONF_DIR"
SHELL_CLIENT = "org.apache.hadoop.yarn.applications.distributedshell.Client"
APPLICATION_CLI = "org.apache.hadoop.yarn.client.cli.ApplicationCLI"

_SHELL_JAR = "hadoop-yarn-applications-distributedshell*.jar"
_COMMAND_TIMEOUT_S = 120
_CORE_SITE = "core-site.xml"


@dataclass(frozen=True)
class YarnClient:
    """How to start YARN's commands, and the jar of its distributed shell."""

    prefix: tuple[str, ...]  # `yarn`, or java with its class path
    shell_jar_path: str
    conf_dir: str

    @property
    def environment(self) -> dict[str, str]:
        """Environment of its commands."""
        return {**os.environ, CONF_VARIABLE: self.conf_dir}

    @property
    def by_java(self) -> bool:
        """Whether classes are called by name, without Hadoop's scripts."""
        return len(self.prefix) > 1

    def shell_command(self, arguments: Sequence[str]) -> list[str]:
        """Submits an application of the distributed shell, and ends when that does."""
        start = [SHELL_CLIENT] if self.by_java else ["jar", self.shell_jar_path, SHELL_CLIENT]
        return [*self.prefix, *start, "-jar", self.shell_jar_path, *arguments]

    def kill(self, application_id: str) -> None:
        """End the application, if it has not ended by itself.

        Raises:
            ClusterError: YARN did not do it.
        """
        start = [APPLICATION_CLI] if self.by_java else []
        command = [*self.prefix, *start, "application", "-kill", application_id]
        done = _run(command)
        if done.returncode != 0:
            raise ClusterError(
                f"{application_id} may still be running: `yarn application -kill` ended with exit code "
                f"{done.returncode}: {done.stderr.strip()[-500:]}"
            )


def find(classpath: str | None, folder: Path) -> YarnClient:
    """The YARN client of this machine; its configuration is written to `folder`.

    Raises:
        ConfigError: there is none, or HADOOP_CONF_DIR is not set.
        ClusterError: it does not work; the message quotes it.
    """
    conf_dir = os.environ.get(CONF_VARIABLE)
    if not conf_dir or not Path(conf_dir, "yarn-site.xml").is_file():
        raise ConfigError(
            f"--master yarn: {CONF_VARIABLE} must be a folder with yarn-site.xml, found {conf_dir!r}"
        )
    if classpath:
        java_home = os.environ.get("JAVA_HOME")
        java = str(Path(java_home, "bin", "java")) if java_home else "java"
        jar_path = _shell_jar(classpath)
        private = _private_conf(Path(conf_dir), folder)
        return YarnClient((java, "-cp", f"{private}:{classpath}"), jar_path, private)
    yarn = _yarn_command()
    done = _run([yarn, "classpath"])
    if done.returncode != 0:
        raise ClusterError(
            f"--master yarn: `{yarn} classpath` ended with exit code {done.returncode}: "
            f"{(done.stderr or done.stdout).strip()[-500:]}"
        )
    return YarnClient((yarn,), _shell_jar(done.stdout), _private_conf(Path(conf_dir), folder))


def _private_conf(conf_dir: Path, folder: Path) -> str:
    """A copy of HADOOP_CONF_DIR in `folder`, with which files on HDFS are made for their owner alone.

    The distributed shell uploads what containers get, keys among it, with permissions that only the umask
    of its configuration can change.
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
    first = ElementTree.Element("property")  # and final: no file that is read later changes it
    for key, value in (("name", "fs.permissions.umask-mode"), ("value", "077"), ("final", "true")):
        ElementTree.SubElement(first, key).text = value
    root.insert(0, first)
    ElementTree.ElementTree(root).write(copy / _CORE_SITE)
    return str(copy)


def _yarn_command() -> str:
    for variable in ("HADOOP_YARN_HOME", "HADOOP_HOME"):
        home = os.environ.get(variable)
        if home and (command := Path(home, "bin", "yarn")).is_file():
            return str(command)
    found = shutil.which("yarn")
    if found is None:
        raise ConfigError(
            "--master yarn: no command `yarn` in HADOOP_HOME/bin or on the PATH; set HADOOP_HOME, or "
            "cluster.yarn_classpath to the jars of YARN's client"
        )
    return found


def _shell_jar(classpath: str) -> str:
    for entry in classpath.strip().split(os.pathsep):
        folder = Path(entry.removesuffix("*"))
        places = [folder] if folder.suffix == ".jar" else sorted(folder.glob(_SHELL_JAR))
        for jar in places:
            if re.fullmatch(r"hadoop-yarn-applications-distributedshell(-[\d.]+.*)?\.jar", jar.name):
                return str(jar)
    raise ConfigError(f"--master yarn: no {_SHELL_JAR} on YARN's class path: {classpath.strip()[:500]}")


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_COMMAND_TIMEOUT_S,
            check=False,
            start_new_session=True,  # Ctrl-C is for the command alone to act on
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClusterError(f"{command[0]}: YARN's client does not work: {error}") from error
