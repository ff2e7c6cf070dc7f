"""dask-submit --master yarn, on a real YARN: the demo end to end, killed containers, every way to end."""

import base64
import getpass
import json
import os
import re
import shutil
import signal
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import hdfs_native
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from graphmill import cluster, storage
from tests import REPOSITORY
from tests.finished import environment
from tests.forked import Fork, Forks
from tests.graphmill.cluster import stranger
from tests.graphmill.cluster.certificates import certificates
from tests.graphmill.smallest import write_conf
from tests.hadoop.cluster import QUICK_START, WAIT_S, MiniHdfs
from tests.hadoop.fixture import hadoop
from tests.hadoop.jars import ensure_jars
from tests.processes import SLEEPER, executable
from tests.waiting import found_in, wait_until

pytestmark = [pytest.mark.yarn, pytest.mark.slow]


FINAL_STATES = {"FINISHED", "FAILED", "KILLED"}


@pytest.fixture(scope="module")
def yarn() -> Iterator[MiniHdfs]:
    """A running HDFS, and a YARN of two nodes."""
    with hadoop(settings={"mini.nodemanagers": "2"}) as cluster, pytest.MonkeyPatch.context() as environment:
        environment.setenv("JAVA_TOOL_OPTIONS", QUICK_START)  # clients of YARN, and through them its masters
        yield cluster


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an installation, which need not compile its code in each container."""
    home = tmp_path_factory.mktemp("installed") / "environment"
    environment(home, ["--no-deps", "--no-index", wheel])
    return home / "bin/python"


class Application(NamedTuple):
    """One line of the resource manager's list."""

    id: str
    name: str
    queue: str
    state: str
    final_status: str


def named(cluster: MiniHdfs, name: str) -> list[Application]:
    """The applications of one name that the resource manager knows."""
    lines = [line.split() for line in cluster.tell("applications") if line.startswith("application_")]
    return [Application(*words) for words in lines if len(words) == 5 and words[1] == name]


def is_over(cluster: MiniHdfs, name: str) -> bool:
    """Whether there were applications of that name, and none is left."""
    found = named(cluster, name)
    return bool(found) and all(each.state in FINAL_STATES for each in found)


def in_containers() -> Iterator[tuple[int, bytes, str]]:
    """Process ids, command lines and containers of what runs on the nodes."""
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(OSError):  # it has ended meanwhile
                command, environment = ((process / name).read_bytes() for name in ("cmdline", "environ"))
                variables = dict(each.partition(b"=")[::2] for each in environment.split(b"\0"))
                if container := variables.get(b"CONTAINER_ID", b"").decode():
                    yield int(process.name), command, container


def containers(name: str) -> set[str]:
    """Running containers whose workers belong to the application `name`."""
    return {
        container
        for _, command, container in in_containers()
        if f"-{container}".encode() in command and f"{name}-".encode() in command
    }


def processes(container: str) -> list[int]:
    """Process ids of everything that runs in a container, those first that started the others."""
    return sorted(pid for pid, _, own in in_containers() if own == container)


def arguments(name: str, *more: str, num_workers: int = 1) -> list[str]:
    common = ("dask-submit", "--master", "yarn", "--worker-memory", "1GiB")
    return [*common, "--name", name, "--num-workers", str(num_workers), *more]


def conf_of(folder: Path, **cluster: Any) -> str:
    """A configuration for scripts: a graph that nobody looks at, and the section `cluster`."""
    patient = {"start_timeout_s": 1800, "replace_after_s": 1800}  # a machine may be busy
    settings = {"yarn_classpath": f"{ensure_jars()}/*", "host": "127.0.0.1", **patient, **cluster}
    write_conf(folder, cluster=settings)
    return str(folder / "c.yaml")


def demo_cut(uri: str, num_packages: int) -> list[str]:
    """Upload the part of the demo's tables that is about its first packages; their names."""
    source = REPOSITORY / "demo" / "debian"
    tables = {path.name: pq.read_table(path) for path in sorted(source.glob("*.parquet"))}
    packages = pc.unique(tables["in_section.parquet"]["package"]).sort()[:num_packages]
    for name, table in tables.items():
        ends = ("source", "target") if name == "package_relations.parquet" else ("package",)
        for end in ends:
            table = table.filter(pc.is_in(table[end], value_set=packages))
        with storage.atomic_output(f"{uri}/{name}") as stream:
            pq.write_table(table, stream)
    return list(packages.to_pylist())


def test_the_demo_in_containers_ends_well_although_workers_and_its_client_are_killed(
    yarn, python, tmp_path, forked
):
    """--deploy-mode cluster: the driver has a container too, and needs its client only to be followed."""
    home = yarn_command(tmp_path, yarn)
    variables = {"HADOOP_HOME": str(home), "TMPDIR": str(tmp_path)}
    root = f"{yarn.uri}/demo"
    packages = demo_cut(f"{root}/in", 400)
    settings = {
        "input": f"{root}/in",
        "output": f"{root}/out",
        "dimension": 8,
        "num_epochs": 6,
        "entities.package.num_partitions": 2,
        "train.commit_interval_s": 0,
        "cluster.replace_after_s": 1,
    }
    overrides = [f"--set={key}={value}" for key, value in settings.items()]
    # Nodes give HADOOP_HOME to their containers; there is no Hadoop on these "nodes".
    deployed = ["--deploy-mode", "cluster", "--driver-memory", "1GiB", "--python", str(python)]
    deployed += ["--yarn-option", f"shell_env=HADOOP_HOME={home}"]
    command = arguments("demo", *deployed, num_workers=2)
    command += ["pipeline.py", "--conf", str(REPOSITORY / "conf" / "demo.yaml"), *overrides]
    run = forked.start(*command, **variables)
    trained = f"{root}/out/checkpoint/checkpoint_version.txt"
    wait_until(lambda: storage.exists(trained) or not run.is_running(), WAIT_S)
    run.send(signal.SIGKILL)
    left = run.wait(-signal.SIGKILL)
    first = sorted(containers("demo"))
    assert len(first) == 2, left.stderr
    for container in first:  # one of them is training
        for pid in processes(container):
            with suppress(ProcessLookupError):  # it ended with its parent
                os.kill(pid, signal.SIGKILL)
    (driver,) = re.findall(r"the driver is (application_\w+)", left.stderr)
    first_try = forked.start("graphmill", "follow", driver, **variables)
    wait_until(lambda: first_try.read("stderr"), WAIT_S)
    first_try.send(signal.SIGINT)
    assert f"{driver} goes on without this command" in first_try.wait(130).stderr
    followed = forked("graphmill", "follow", driver, **variables)
    assert f"embeddings: {root}/out/embeddings" in followed.stdout
    again = forked("graphmill", "follow", driver, code=1, **variables)
    assert f"{driver}: the driver has ended without an exit code, unless another command" in again.stderr
    record = json.loads(storage.read_text(f"{root}/out/run.json"))
    assert record["status"] == "done"
    parts = storage.list_dir(f"{root}/out/embeddings/package")
    tables = [pq.read_table(pa.BufferReader(storage.read_bytes(each.uri))) for each in parts]
    ids = {each for table in tables for each in table["id"].to_pylist()}
    assert ids == set(packages)
    assert len(named(yarn, "demo")) >= 2  # the containers came back by a further application
    assert "; asking for others; " in followed.stderr
    assert re.search(rf"{first[0]} on \S+: exit status 137: ", followed.stderr)
    assert re.search(rf"container_\w+ on \S+ replaces {first[0]} on ", followed.stderr)
    assert is_over(yarn, "demo")
    for name in ("demo", "demo-driver", ".graphmill"):
        wait_until(lambda name=name: left_on_hdfs(yarn, name) == [], WAIT_S)


def test_every_signal_ends_the_application_from_which_other_users_are_kept_out(yarn, tmp_path, forked):
    stranger.open_to_all(tmp_path)
    (tmp_path / "sleeper.py").write_text(textwrap.dedent(SLEEPER))
    conf = conf_of(tmp_path)
    ways = {"ctrl-c": (signal.SIGINT, 130), "sigterm": (signal.SIGTERM, 143), "sigkill": (signal.SIGKILL, -9)}
    runs: dict[str, Fork] = {}
    for way in ways:
        words = arguments(way, "--conf", conf, "sleeper.py")
        (tmp_path / way).mkdir()  # a killed one leaves its folder there
        runs[way] = forked.start(*words, cwd=tmp_path, TMPDIR=str(tmp_path / way))
    waiting = {way: number for way, (number, _) in ways.items()}
    workers: list[int] = []

    def all_have_their_signal() -> bool:
        """In the order in which they get workers: there is no room for the workers of all."""
        for way in [each for each in waiting if "\n" in runs[each].read("stdout")]:
            workers.extend(map(int, runs[way].read("stdout").split()[1:]))
            if way == "sigterm" and os.geteuid() == 0:  # only root can become another user
                check_private(forked, yarn, way, runs[way], tmp_path / way)
            runs[way].send(waiting.pop(way))
        return not waiting

    wait_until(all_have_their_signal, WAIT_S)
    assert len(workers) == 3
    for way, (_, code) in ways.items():
        ended = runs[way].wait(code)
        if way != "sigkill":  # nobody was left to see to that one: it ends by itself
            assert is_over(yarn, way), ended.stderr
            assert left_on_hdfs(yarn, way) == []
            assert not found_in(tmp_path, f"{way}/**/keys.pem")
    wait_until(lambda: is_over(yarn, "sigkill"), WAIT_S)
    # YARN calls an application killed before its nodes have ended the containers.
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), WAIT_S)


def left_on_hdfs(cluster: MiniHdfs, name: str) -> list[str]:
    """What YARN's client uploaded for applications, and nobody has deleted."""
    user = os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
    return [each.uri for each in storage.list_dir(f"{cluster.uri}/user/{user}/{name}")]


def test_missing_workers_end_a_run_with_yarn_s_reason(yarn: MiniHdfs, tmp_path: Path, forked: Forks) -> None:
    """The message quotes YARN, whether time is up or the application has ended by itself."""
    (tmp_path / "never.py").write_text("print('never')")
    cases: dict[str, tuple[int, list[str], int, str]] = {
        "late": (10, ["--python", "/nonexistent/python"], 69, "no worker came within 10 s"),
        "refused": (1800, ["--queue", "no-such-queue"], 69, "no-such-queue"),
        "unknown": (1800, ["--yarn-option", "colour=red"], 2, "Unrecognized option: -colour"),
        "large": (1800, ["--worker-memory", "64GiB"], 2, "cluster.worker_memory: expected a container of at"),
    }
    runs = {}
    for name, (timeout_s, options, *_) in cases.items():
        (tmp_path / name).mkdir()
        conf = conf_of(tmp_path / name, start_timeout_s=timeout_s)
        runs[name] = forked.start(*arguments(name, *options, "--conf", conf, "never.py"), cwd=tmp_path)
    for name, (*_, code, message) in cases.items():
        ended = runs[name].wait(code)
        assert ended.stdout == ""
        assert code == 2 or "error: --master yarn: no worker came" in ended.stderr
        assert message in ended.stderr
    assert {each.state for each in named(yarn, "late")} <= FINAL_STATES


def check_private(forked: Forks, yarn: MiniHdfs, name: str, run: Fork, folder: Path) -> None:
    """By default, keys are for this user alone, on HDFS, on the nodes and here; others get nowhere."""
    found = storage.list_dir(f"{yarn.uri}/user/{getpass.getuser()}/{name}", recursive=True)
    uploaded = [status.uri for status in found if not status.is_dir]
    assert [uri for uri in uploaded if storage.name(uri) == "keys.pem"]
    for uri in uploaded:
        with pytest.MonkeyPatch.context() as environment, pytest.raises(Exception, match="Permission denied"):
            environment.setenv("HADOOP_USER_NAME", "mallory")
            hdfs_native.Client(yarn.uri).read(urlsplit(uri).path).read()
    (container,) = containers(name)
    pids = processes(container)
    key = Path(f"/proc/{pids[0]}/cwd/keys.pem").resolve()
    assert key.stat().st_mode & 0o077 == 0
    script = Path(f"/proc/{pids[0]}/cwd/ExecScript.sh").resolve().read_text()
    inherited = base64.b64decode(re.search(r"INHERIT_CONFIG=(\S+)", script)[1])
    assert "PRIVATE KEY" not in script + inherited.decode()
    every = [*stranger.tree(run.pid), *pids]
    assert {ip for ip, _ in stranger.listening(every)} == {"127.0.0.1"}
    assert stranger.attempts(forked, folder, every) == []


ENVIRONMENT_SCRIPT = """
    import json, os, sys
    from distributed import get_client

    def about(dask_worker):
        import os, sys, tempfile
        return {
            "prefix": sys.prefix, "environment": dict(os.environ), "address": dask_worker.address,
            "temporary": tempfile.gettempdir(), "scratch": dask_worker.local_directory,
        }

    found = list(get_client().run(about).values())
    print(json.dumps(found))
"""

# What Hadoop's own `yarn` does of it: four commands, by java with the class path of its jars. `yarn logs`
# takes the logs from web services, which this cluster lacks.
YARN_COMMAND = """case "$1" in
  logs) find {base} -path "*/$3/*" -name AppMaster.stderr -exec cat {{}} + ;;
  classpath) echo "{jars}/*" ;;
  jar) shift 2; exec java -cp "$HADOOP_CONF_DIR:{jars}/*" "$@" ;;
  *) exec java -cp "$HADOOP_CONF_DIR:{jars}/*" org.apache.hadoop.yarn.client.cli.ApplicationCLI "$@" ;;
esac"""


def test_a_packed_environment_and_the_command_yarn(yarn: MiniHdfs, tmp_path: Path, forked: Forks) -> None:
    """--archive on HDFS is unpacked on the nodes; HADOOP_HOME's client; containers get what they must."""
    hdfs_native.Client(yarn.uri).mkdirs("/user/alice", 0o777, create_parent=True)
    home = yarn_command(tmp_path, yarn)
    archive = f"{yarn.uri}/environments/small.tar.gz"
    with storage.atomic_output(archive) as stream:
        stream.write(packed_environment(tmp_path))
    (tmp_path / "about.py").write_text(textwrap.dedent(ENVIRONMENT_SCRIPT))
    conf = conf_of(tmp_path, yarn_classpath=None, tls=certificates(tmp_path))
    words = arguments(
        *("packed", "--archive", archive, "--queue", "nightly", "--conf", conf),
        *("--yarn-option", "shell_env=COLOUR=red", "--yarn-option", "shell_env=SHAPE=round"),
        *("--yarn-option", "debug", "about.py"),
    )
    given = {"GRAPHMILL_HDFS_TIMEOUT_S": "17", "HADOOP_USER_NAME": "alice"}
    done = forked(*words, cwd=tmp_path, HADOOP_HOME=str(home), **given)
    (worker,) = json.loads(done.stdout)
    assert worker["prefix"].endswith("small.tar.gz.unpacked")
    found = worker["environment"]
    told = {"GRAPHMILL_NUM_CORES": "1", "COLOUR": "red", "SHAPE": "round"}
    assert (cluster.ENVIRONMENT | given | told).items() <= found.items()
    own = f"{found['LOCAL_DIRS']}/{found['CONTAINER_ID']}/"
    assert worker["temporary"] == f"{own}tmp"
    for variable in ("XDG_CACHE_HOME", "MPLCONFIGDIR", "TRITON_CACHE_DIR", "NUMBA_CACHE_DIR"):
        assert found[variable].startswith(f"{own}cache")
    assert worker["scratch"].startswith(own)
    assert worker["address"].startswith("tls://")
    application = named(yarn, "packed")[0]
    assert application.queue.endswith("nightly")
    assert application.final_status == "SUCCEEDED"
    assert f"logs: yarn logs -applicationId {application.id}" in done.stderr


def yarn_command(folder: Path, cluster: MiniHdfs) -> Path:
    """A HADOOP_HOME with the command `yarn`."""
    text = YARN_COMMAND.format(jars=ensure_jars(), base=cluster.conf_dir.parent)
    return executable(folder / "hadoop/bin/yarn", text).parents[1]


def packed_environment(folder: Path) -> bytes:
    """A virtual environment in a tar.gz, small since it borrows this one's packages."""
    home = folder / "environment"
    (environment(home) / "checkout.pth").write_text(str(REPOSITORY))
    return Path(shutil.make_archive(str(folder / "small"), "gztar", home)).read_bytes()
