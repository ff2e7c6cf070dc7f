"""`cluster.deploy: cluster`: scheduler and driver in a YARN container of their own.

    graphmill ----------------- an edge node: submits, then shows the output of the driver; may be lost
      |  application NAME-driver
      |    container: python -m graphmill.cluster.driver ... -m graphmill pipeline ...
      |      the scheduler, and the client of the applications of workers, as in `yarn`
      |  hdfs:///user/USER/.graphmill/application_.../       the output of the driver: `driver`

    the container's folder, filled by YARN
        ExecScript.sh  env.tar.gz  ...        as that of a worker
        job.tar                               unpacked by the script:
          hadoop-conf/                        the submitter's HADOOP_CONF_DIR
          job/                                local files that the command names

The driver submits the applications of the workers itself: nodes need the client of YARN, which comes with
their node manager. A Kerberos cluster takes applications only from who has a ticket, which no container has.
"""

import json
import logging
import math
import os
import re
import shlex
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from graphmill import storage
from graphmill.cluster import container, hadoop
from graphmill.cluster.driver import Reader
from graphmill.cluster.hadoop import Application, home_uri
from graphmill.cluster.settings import DRIVER_VARIABLE
from graphmill.config.sections.cluster import ClusterConfig, YarnOptions
from graphmill.errors import ClusterError, ConfigError, GraphMillError, StorageError
from graphmill.storage import hadoop_conf, run_folder

QUIET_S = 30.0
END_TIMEOUT_S = 30.0
UNREAD_S = 300.0  # a namenode may fail over meanwhile
JOB = "job"  # the folder of the command's local files, in the container's folder

_LOGS = ".graphmill"
_ARCHIVE = "job.tar"
_CONF = "hadoop-conf"
_POLL_S = 1.0

_TEMPLATE = """\
#!/bin/bash
# YARN starts this in the container's folder.
{start}
tar -xf {archive} || exit 1
export HADOOP_CONF_DIR="$PWD/{conf}" {variable}=1
exec "$python" -m graphmill.cluster.driver {words}
"""

log = logging.getLogger("graphmill")


def run(words: Sequence[str], files: Mapping[str, str], settings: ClusterConfig) -> int:
    """Run `python WORDS` in a container, show its output, and return its exit code.

    The words name local files as `job/NAME`; `files` has their paths by NAME.
    """
    if hadoop_conf.settings().get("hadoop.security.authentication", "").lower() == "kerberos":
        raise ConfigError(
            "cluster.deploy: cluster: this cluster uses Kerberos, and a container has no ticket to ask for "
            "workers; use --deploy-mode client, on a machine that stays up"
        )
    with run_folder.temporary() as folder:
        application = _submit(words, files, settings, Path(folder))
        try:
            while application.id is None and not application.ended:
                time.sleep(_POLL_S)
            application.check_memory("driver_memory")
            if application.id is None:
                raise application.failure("the driver did not start")
            text = "yarn: the driver is %s; it goes on without this command: %s"
            log.info(text, application.id, follow_command(application.id, settings))
            code = _followed(application.id, lambda: application.ended, application.diagnosis)
        except (ClusterError, ConfigError) as error:
            application.end(0 if isinstance(error, ConfigError) else END_TIMEOUT_S)
            raise
        except BaseException:
            application.leave()
            log.warning("%s", _goes_on(application.id, settings))
            raise
        application.end(END_TIMEOUT_S)
        _forget_log(application.id)
        return code


def follow(application_id: str, settings: ClusterConfig) -> int:
    """Show the output of a driver that another command has submitted, and return its exit code."""
    if not re.fullmatch(r"application_\d+_\d+", application_id):
        raise ConfigError(f"{application_id}: expected the id of an application, as application_17_0001")
    with run_folder.temporary() as folder:
        yarn = hadoop.find(settings.yarn_classpath, Path(folder))
        try:
            code = _followed(
                application_id,
                lambda: yarn.is_over(application_id),
                lambda: f"see `yarn logs -applicationId {application_id}`",
                patience_s=QUIET_S,
            )
        except (KeyboardInterrupt, SystemExit):
            log.warning("%s", _goes_on(application_id, settings))
            raise
    _forget_log(application_id)
    return code


def _followed(
    application_id: str, is_over: Callable[[], bool], diagnosis: Callable[[], str], patience_s: float = 0
) -> int:
    """Show the output until there is an exit code; without output, call `is_over` every `patience_s`."""
    reader = Reader(_log_uri(application_id))
    begun = time.monotonic()
    next_question = begun + min(_POLL_S, patience_s)  # where there is output, the question is not needed
    unread_until = math.inf
    is_told, told_error = False, ""
    while True:
        now = time.monotonic()
        is_last = now >= next_question and is_over()  # asked first: nothing is written later
        next_question = now + patience_s if now >= next_question else next_question
        unread_until = min(unread_until, now + UNREAD_S) if is_last else unread_until
        try:
            code = reader.exit_code()
            if reader.show():
                is_told, next_question = True, now + patience_s
            if code is not None:
                return code
        except StorageError as error:
            if now > unread_until:
                raise ClusterError(
                    f"{application_id}: the driver has ended, and its output cannot be read: {error}"
                ) from error
            if str(error) != told_error:
                log.warning("yarn: the output of the driver cannot be read now: %s", error)
            told_error, is_last = str(error), False
        else:
            told_error = ""
        if is_last:
            raise ClusterError(
                f"{application_id}: the driver has ended without an exit code, unless another command has "
                f"shown its output; {diagnosis()}\nrun the same command to go on"
            )
        if not is_told and now - begun > QUIET_S:
            is_told = True
            log.info("yarn: the driver has not begun: %s", diagnosis())
        time.sleep(_POLL_S)


def _forget_log(application_id: str) -> None:
    with suppress(GraphMillError, OSError):  # a log that remains harms nobody
        storage.delete(_log_uri(application_id))


def _submit(
    words: Sequence[str], files: Mapping[str, str], settings: ClusterConfig, folder: Path
) -> Application:
    yarn = hadoop.find(settings.yarn_classpath, folder)
    archive_path, script_path = folder / _ARCHIVE, folder / "driver.sh"
    _pack(archive_path, files)
    script_path.write_text(
        _TEMPLATE.format(
            start=container.start_of(settings),
            archive=_ARCHIVE,
            conf=_CONF,
            variable=DRIVER_VARIABLE,
            words=shlex.join([storage.join(home_uri(), _LOGS), *words]),
        )
    )
    name = f"{settings.name}-driver"
    paths = [str(archive_path), *container.localized_files(settings, folder, None)]
    memory = container.mib("driver_memory", settings.driver_memory)
    own: YarnOptions = {"container_memory": memory, "container_vcores": 1}
    arguments = container.shell_arguments(settings, name, 1, script_path, paths, own)
    return Application(yarn, name, 1, arguments, folder / "client.log")


def _pack(archive_path: Path, files: Mapping[str, str]) -> None:
    """Write the local files of the command, and Hadoop's configuration, to a tar file."""
    with tarfile.open(archive_path, "w", dereference=True) as archive:
        for path in sorted(Path(os.environ[hadoop.CONF_VARIABLE]).glob("*.xml")):
            archive.add(path, f"{_CONF}/{path.name}")
        for name, local_path in files.items():
            archive.add(local_path, f"{JOB}/{name}", recursive=False)


def _log_uri(application_id: str) -> str:
    return storage.join(home_uri(), _LOGS, application_id)


def follow_command(application_id: str, settings: ClusterConfig) -> str:
    """Return the command that shows the output of a driver from another shell."""
    path = settings.yarn_classpath
    options = ["--set", f"cluster.yarn_classpath={json.dumps(path)}"] if path else []
    return shlex.join(["graphmill", "follow", application_id, *options])


def _goes_on(application_id: str | None, settings: ClusterConfig) -> str:
    if application_id is None:
        return "yarn: whether the application was submitted is unknown: yarn application -list"
    return (
        f"yarn: {application_id} goes on without this command; see it by `"
        f"{follow_command(application_id, settings)}`, end it by `yarn application -kill {application_id}`"
    )
