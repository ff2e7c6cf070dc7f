"""Commands of the YARN client and the script of a container, without a YARN."""

import os
import queue
import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from graphmill import config, storage
from graphmill.cluster import container, deploy, hadoop, yarn
from graphmill.cluster.hadoop import shell_words
from graphmill.cluster.local import scheduler_here
from graphmill.cluster.yarn import Containers
from graphmill.config import validated
from graphmill.config.sections.cluster import ClusterConfig
from graphmill.errors import ClusterError, ConfigError, DiskFullError, GraphMillError, StorageError
from tests.processes import executable, full_disk
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("conf_dir")
JAR = "hadoop-yarn-applications-distributedshell-3.4.2.jar"


@pytest.fixture
def conf_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A HADOOP_CONF_DIR, and no Hadoop."""
    folder = tmp_path / "conf"
    folder.mkdir()
    (folder / "yarn-site.xml").write_text("<configuration/>")
    (folder / "core-site.xml").write_text("<configuration/>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(folder))
    for variable in ("HADOOP_HOME", "HADOOP_YARN_HOME", "JAVA_HOME"):
        monkeypatch.delenv(variable, raising=False)
    executable(tmp_path / "java/java", "")
    monkeypatch.setenv("PATH", f"{tmp_path}/java:/usr/bin:/bin")
    return folder


def test_by_class_path(conf_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / JAR).touch()
    (tmp_path / "lib" / JAR.replace(".jar", "-tests.txt")).touch()
    client = hadoop.find(f"{tmp_path}/other/*:{tmp_path}/lib/*", tmp_path)
    assert client.shell_jar_path == str(tmp_path / "lib" / JAR)
    command = client.shell_command(["-num_containers", "3"])
    class_path = f"{tmp_path}/hadoop-conf:{tmp_path}/other/*:{tmp_path}/lib/*"
    assert command[:3] == [f"{tmp_path}/java/java", "-cp", class_path]
    assert command[3:] == [hadoop.SHELL_CLIENT, "-jar", client.shell_jar_path, "-num_containers", "3"]


def test_by_hadoop_home(conf_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "hadoop"
    jars = home / "share" / "hadoop" / "yarn"
    jars.mkdir(parents=True)
    (jars / JAR).touch()
    class_path = f"{conf_dir}:{home}/share/hadoop/common/*:{jars}/*"
    yarn = executable(home / "bin" / "yarn", f"echo '{class_path}'")
    monkeypatch.setenv("HADOOP_HOME", str(home))
    client = hadoop.find(None, tmp_path)
    jar = str(jars / JAR)
    assert client.shell_command(["x"]) == [str(yarn), "jar", jar, hadoop.SHELL_CLIENT, "-jar", jar, "x"]
    executable(yarn, "echo 'ERROR: JAVA_HOME is not set and could not be found.' >&2\nexit 1")
    with pytest.raises(ClusterError, match="classpath` ended with exit code 1: ERROR: JAVA_HOME is not set"):
        hadoop.find(None, tmp_path)


def test_missing_parts_of_the_client_are_named(conf_dir, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"no command `yarn`.*set HADOOP_HOME, or cluster\.yarn_classpath"):
        hadoop.find(None, tmp_path)
    with pytest.raises(ConfigError, match="no hadoop-yarn-applications-distributedshell"):
        hadoop.find(f"{tmp_path}/*", tmp_path)
    (tmp_path / JAR).touch()
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(ConfigError, match="no command /nowhere/bin/java; set JAVA_HOME"):
        hadoop.find(f"{tmp_path}/*", tmp_path)
    (conf_dir / "yarn-site.xml").unlink()
    with pytest.raises(ConfigError, match=r"HADOOP_CONF_DIR must be a folder with yarn-site\.xml"):
        hadoop.find("x", tmp_path)


@pytest.mark.parametrize(
    ("asked", "worker", "whole"), [("auto", 4096, 4505), ("1GiB", 1024, 1408), ("10GiB", 10240, 11264)]
)
def test_a_container_has_room_beside_its_worker(asked: str, worker: int, whole: int) -> None:
    assert container.memory_mib(ClusterConfig(worker_memory=asked)) == (worker, whole)


def test_no_memory_size() -> None:
    cases = [("worker_memory", asked) for asked in ("much", "-1GiB", "10KiB", "4", "1e999GiB")]
    for key, asked in (*cases, ("driver_memory", "auto")):
        with pytest.raises(ConfigError, match=rf"cluster\.{key}: expected .* found '{asked}'"):
            validated(ClusterConfig, {key: asked}, prefix=("cluster",))
    with pytest.raises(ConfigError, match=r"cluster\.worker_memory: expected at least 1 MiB"):
        container.memory_mib(ClusterConfig(worker_memory="0"))  # a container has a limit


def test_the_command_that_follows_a_driver_has_the_class_path() -> None:
    """It may come from --set, and is needed again then."""
    for path in (None, "/opt/hadoop/*:/opt/hadoop/lib/*", "/a folder/it's"):
        said = deploy.follow_command("application_17_0001", ClusterConfig(yarn_classpath=path))
        graphmill, follow, application, *options = shlex.split(said)
        assert (graphmill, follow, application) == ("graphmill", "follow", "application_17_0001")
        assert config.read_raw(None, options[1::2]).get("cluster", {}).get("yarn_classpath") == path


def run_script(settings: ClusterConfig, port: int, folder: Path) -> subprocess.Popen[str]:
    script = folder / "ExecScript.sh"
    script.write_text(container.script(settings, f"tcp://127.0.0.1:{port}", "app-0", None))
    environment = {**os.environ, "CONTAINER_ID": "container_1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(["bash", script], cwd=folder, env=environment, **pipes)


@pytest.mark.slow
def test_the_script_s_exit_codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """YARN starts again what ends with 1: a failure, but not the end of a worker without a scheduler."""
    monkeypatch.setattr(container, "SCHEDULER_GONE_S", 1)
    monkeypatch.setattr(container, "SETTLE_S", 0)
    monkeypatch.setenv("GRAPHMILL_TEST", "it's")
    failing = executable(tmp_path / "python", 'echo "$GRAPHMILL_TEST $HADOOP_CONF_DIR $*"\nkill -9 $$')
    settings = ClusterConfig(python=str(failing), worker_cores=3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with run_script(settings, port, tmp_path) as script:
            output, errors = script.communicate(timeout=300)
        assert script.returncode == 1, errors  # not 137, which YARN takes for its own kill
        assert output.startswith(f"it's {tmp_path} -m dask worker tcp://127.0.0.1:{port} --nthreads 3")
        assert "--name app-0-container_1" in output
    with socket.socket() as silent:  # nobody else gets its port meanwhile
        silent.bind(("127.0.0.1", 0))
        with run_script(settings, silent.getsockname()[1], tmp_path) as script:
            output, errors = script.communicate(timeout=300)
    assert (script.returncode, output) == (0, "")
    assert "nothing to do" in errors


@pytest.mark.hdfs
def test_an_archive_for_which_this_machine_has_no_room(hdfs_uri: str, tmp_path: Path) -> None:
    archive = f"{hdfs_uri}/env.tar.gz"
    with storage.atomic_output(archive) as stream:
        stream.write(bytes(100_000))
    refused = pytest.raises(DiskFullError, match=r"env\.tar\.gz: cannot copy: .*File too large")
    with full_disk(50_000), refused:
        container.localized_files(ClusterConfig(archive=archive), tmp_path, None)


def test_a_user_without_a_name_has_no_folder_on_hdfs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may have any user id."""
    monkeypatch.setenv("HADOOP_USER_NAME", "alice")
    assert hadoop.home_uri() == "hdfs:///user/alice"
    for name in ("HADOOP_USER_NAME", "LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 123_456_789)
    with pytest.raises(ConfigError, match=r"HADOOP_USER_NAME: expected a name, .* 123456789 has none; set"):
        hadoop.home_uri()


def test_a_worker_with_gpus_is_dask_cuda_s() -> None:
    text = container.script(ClusterConfig(worker_gpus=2, worker_cores=8), "tls://h:1", "app-0", None)
    assert '"$python" -m dask cuda worker tls://h:1 --nthreads 1' in text


def test_an_archive_is_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of containers that start at the same time on a node, one unpacks and all wait for it."""
    monkeypatch.setattr(container, "SETTLE_S", 0)
    executable(tmp_path / "environment/bin/python", "echo $0")
    (tmp_path / "environment/bin/conda-unpack").write_text("")
    localized = tmp_path / "filecache"
    localized.mkdir()
    subprocess.run(["tar", "-czf", localized / "env.tar.gz", "-C", tmp_path / "environment", "."], check=True)
    runs = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        for number in range(3):
            folder = tmp_path / f"container-{number}"
            folder.mkdir()
            (folder / "env.tar.gz").symlink_to(localized / "env.tar.gz")
            settings = ClusterConfig(archive=str(localized / "env.tar.gz"))
            runs.append(run_script(settings, server.getsockname()[1], folder))
        outputs = [run.communicate(timeout=300)[0].split() for run in runs]
    unpacked = str(localized / "env.tar.gz.unpacked" / "bin" / "python")
    assert [output[-1] for output in outputs] == [unpacked] * 3
    assert sum(len(output) for output in outputs) == 4  # conda-unpack ran once


def test_what_the_client_uploads_is_private_whatever_the_configuration_says(conf_dir, tmp_path):
    """Its configuration is the submitter's, with a umask that no other line changes."""
    own = "<property><name>fs.permissions.umask-mode</name><value>022</value><final>true</final></property>"
    other = "<property><name>fs.defaultFS</name><value>hdfs://shop</value></property>"
    (conf_dir / "core-site.xml").write_text(f"<configuration>{own}{other}</configuration>")
    (tmp_path / JAR).touch()
    client = hadoop.find(f"{tmp_path}/*", tmp_path)
    copied = ElementTree.parse(Path(client.conf_dir, "core-site.xml")).getroot()
    first = copied[0]
    assert [each.text for each in first] == ["fs.permissions.umask-mode", "077", "true"]
    assert "hdfs://shop" in [each.findtext("value") for each in copied]
    assert Path(client.conf_dir, "yarn-site.xml").read_text() == "<configuration/>"
    assert client.environment["HADOOP_CONF_DIR"] == client.conf_dir
    (conf_dir / "core-site.xml").write_text("<configuration>")
    with pytest.raises(ConfigError, match=r"core-site\.xml: expected Hadoop's configuration in XML"):
        hadoop.find(f"{tmp_path}/*", conf_dir)


def test_further_options_become_words_of_the_client_unless_they_follow_from_settings() -> None:
    given = {"priority": 5, "debug": True, "enforce_execution_type": False, "shell_env": ["A=b", "C=d e"]}
    settings = validated(ClusterConfig, {"yarn_options": given}, prefix=("cluster",))
    words = ["-priority", "5", "-debug", "-shell_env", "A=b", "-shell_env", "C=d e"]
    assert shell_words(settings.yarn_options) == words
    for key, message in (
        ("container_memory", "container_memory: GraphMill sets this option; use cluster.worker_memory"),
        ("-priority", "expected names of options as node_label_expression, found '-priority'"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            validated(ClusterConfig, {"yarn_options": {key: "1"}}, prefix=("cluster",))


YARN = """
case "$1" in
  classpath) echo {lib} ;;
  jar)
    echo "Max mem capability of resources in this cluster 8192"
    echo "Max virtual cores capability of resources in this cluster 4"
    echo "Submitted application application_17_0001"; exec sleep 600 ;;
  application) {application} ;;
esac
"""


def install_yarn(folder: Path, monkeypatch: pytest.MonkeyPatch, application: str = "exit 1") -> None:
    """A command `yarn` whose applications never end; `application` is what it does with their states."""
    (folder / JAR).touch()
    executable(folder / "bin/yarn", YARN.format(lib=folder / JAR, application=application))
    monkeypatch.setenv("HADOOP_HOME", str(folder))
    monkeypatch.setattr(deploy, "home_uri", lambda: str(folder))


@pytest.mark.slow
def test_more_memory_than_a_container_may_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The distributed shell would take the most that there is, and its log on a node would say so."""
    install_yarn(tmp_path, monkeypatch, "exit 0")
    settings = ClusterConfig(tls="off", worker_memory="8GiB", driver_memory="9GiB")
    with pytest.raises(ConfigError, match=r"driver_memory: .* at most 8192 MiB, .* found 9216 MiB"):
        deploy.run(["-m", "graphmill", "train"], {}, settings)
    empty = SimpleNamespace(scheduler=SimpleNamespace(workers={}), scheduler_address="tcp://h:1")
    containers = Containers(settings, None, empty, tmp_path, lambda error: None)
    with pytest.raises(ConfigError, match=r"worker_memory: .* at most 8192 MiB, .* found 9011 MiB"):
        containers.start()
    containers.end(in_order=False)


def test_more_cores_than_a_container_may_have(tmp_path, monkeypatch, caplog):
    """A warning: by default YARN's scheduler counts memory alone, and such a worker runs."""
    install_yarn(tmp_path, monkeypatch, "exit 0")
    monkeypatch.setattr(hadoop, "home_uri", lambda: str(tmp_path))
    yarn, words = hadoop.find(None, tmp_path), ["-container_vcores", "6"]
    application = hadoop.Application(yarn, "n", 1, words, tmp_path / "log")
    wait_until(lambda: application.id is not None, 60)
    application.announce()
    application.announce()
    assert application.is_pending(0, 60)
    assert not application.is_pending(0, 0)
    assert [application.is_pending(num, 60) for num in (1, 0)] == [False, False]
    told = (
        "a worker uses 6 cores, and a container gets 4 vcores at most "
        "(yarn.scheduler.maximum-allocation-vcores): nodes may have more work than cores"
    )
    assert caplog.text.count(told) == 1
    uploaded = tmp_path / "n/application_17_0001"
    uploaded.mkdir(parents=True)
    application.end(0)
    assert not uploaded.exists()


@pytest.mark.slow
def test_a_run_whose_workers_cannot_be_replaced_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk of the run's files is gone when a worker is lost."""
    install_yarn(tmp_path, monkeypatch)
    settings = ClusterConfig(tls="off", num_workers=1, replace_after_s=1)
    told = queue.SimpleQueue[GraphMillError]()
    inproc = {"host": None, "processes": False, "protocol": "inproc://"}
    with scheduler_here(settings, None, n_workers=0, **inproc) as here:
        folder = tmp_path / "run"
        folder.mkdir()
        containers = Containers(settings, None, here, folder, told.put)
        here.worker_spec["graphmill-0-container_17_0001_01_000002"] = here.new_spec
        here.sync(here._correct_state)
        containers.start()
        shutil.rmtree(folder)
        here.scale(0)
        with pytest.raises(ClusterError, match="missing workers cannot be replaced: FileNotFoundError"):
            raise told.get(timeout=300)
        folder.mkdir()
        (folder / "client-0.log").write_text("Submitted application application_17_0001")
        containers.end(in_order=False)


def replaced(present_at: Callable[[float], int], end_s: float, pending_s: float = 0) -> list[float]:
    """Times at which a run of two workers asks for others, and -1 if it gives up."""
    last_s = 0.0

    def looks() -> Iterator[tuple[float, int, bool]]:
        nonlocal last_s
        while last_s < end_s:
            last_s += 0.5
            yield last_s, present_at(last_s), last_s < pending_s

    asked = [last_s for _ in yarn.missing_for_long(looks(), 2, 10.0)]
    return asked if last_s >= end_s else [*asked, -1]


def test_missing_containers_are_replaced_with_patience() -> None:
    """The wait doubles while that does not help, and is as at first when all are there again."""
    assert replaced(lambda now: 1, 200) == [11, 32, 73, 154]
    assert replaced(lambda now: 2 if 40 < now <= 41 else 1, 60) == [11, 32, 52]
    assert replaced(lambda now: 0, 1000) == [11, 32, 73, -1]
    assert replaced(lambda now: 1, 70, pending_s=50) == [60.5]  # they may still come


@pytest.mark.slow
def test_a_driver_is_followed_while_yarn_is_slow_and_not_for_ever(tmp_path, monkeypatch, caplog):
    slow = tmp_path / "slow"
    status = f'[ -e {slow} ] || {{ touch {slow}; exec sleep 600; }}; echo "State : FINISHED"'
    install_yarn(tmp_path, monkeypatch, status)
    monkeypatch.setattr(deploy, "QUIET_S", 0)
    monkeypatch.setattr(deploy, "UNREAD_S", 0)
    monkeypatch.setattr(hadoop, "COMMAND_TIMEOUT_S", 5)
    exit_code = tmp_path / ".graphmill" / "application_17_0001" / "exit"
    exit_code.mkdir(parents=True)  # which cannot be read
    with pytest.raises(ClusterError, match=r"has ended, and its output cannot be read: .*/exit"):
        deploy.follow("application_17_0001", ClusterConfig())
    assert "timed out after 5 seconds" in caplog.text
    assert "cannot be read now" in caplog.text
    exit_code.rmdir()
    exit_code.write_text("3")
    assert deploy.follow("application_17_0001", ClusterConfig()) == 3


def test_an_application_that_yarn_does_not_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """YARN's command writes its log to stderr, and what is wrong to stdout."""
    told = "Application with id 'application_17_0001' doesn't exist in RM or Timeline Server."
    install_yarn(tmp_path, monkeypatch, f'echo INFO Connecting >&2; echo "{told}"; exit 255')
    monkeypatch.setattr(deploy, "QUIET_S", 0)
    with pytest.raises(ClusterError, match=r"code 255: INFO Connecting\nApplication .* doesn't exist"):
        deploy.follow("application_17_0001", ClusterConfig())


def test_an_unreadable_output_of_a_driver_is_told_once_until_that_changes(tmp_path, monkeypatch, caplog):
    answers = iter([*map(StorageError, ("slow", "slow", "gone", "gone")), None, StorageError("gone"), 3])

    def exit_code() -> int | None:
        if isinstance(answer := next(answers), StorageError):
            raise answer
        return answer

    reader = SimpleNamespace(exit_code=exit_code, show=lambda: False)
    monkeypatch.setattr(deploy, "Reader", lambda folder: reader)
    monkeypatch.setattr(deploy, "home_uri", lambda: str(tmp_path))
    monkeypatch.setattr(deploy.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(hadoop, "find", lambda *_: SimpleNamespace(is_over=lambda application: False))
    assert deploy.follow("application_17_0001", ClusterConfig()) == 3
    assert [record.getMessage().rpartition(" ")[2] for record in caplog.records] == ["slow", "gone", "gone"]


@pytest.mark.slow
def test_a_driver_that_has_ended_well_but_cannot_be_removed(tmp_path, monkeypatch, caplog):
    install_yarn(tmp_path, monkeypatch)
    monkeypatch.setattr(deploy, "END_TIMEOUT_S", 0)
    log = tmp_path / ".graphmill" / "application_17_0001"
    log.mkdir(parents=True)
    (log / "exit").write_text("3")
    assert deploy.run(["-m", "graphmill", "train"], {}, ClusterConfig()) == 3
    assert "application_17_0001 may still be running" in caplog.text


def test_the_application_of_a_container() -> None:
    for name in ("container_1795176752464_0001_02_000003", "container_e17_1795176752464_0001_02_000003"):
        assert hadoop.application_of(name) == ("application_1795176752464_0001", 2)
    with pytest.raises(ValueError, match="expected the id of a container"):
        hadoop.application_of("container")
