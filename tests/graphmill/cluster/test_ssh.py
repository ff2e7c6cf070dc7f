"""`--master ssh://` with a real SSH server (asyncssh), which runs commands in a shell."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import dask
import pytest
from distributed.utils import get_ip

from graphmill import cluster
from graphmill.cluster.keys import new_keys
from graphmill.cluster.ssh import parse
from graphmill.config.sections.cluster import ClusterConfig
from graphmill.errors import ClusterError, ConfigError
from tests.graphmill.cluster import stranger
from tests.processes import executable, speaking
from tests.waiting import found_in, wait_until

asyncssh = pytest.importorskip("asyncssh", reason="asyncssh is not installed: pip install 'graphmill[ssh]'")


@pytest.fixture
def ssh_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    """`user@127.0.0.1:port` of a server that this user may enter, and whose key is known; and its process."""
    stranger.open_to_all(tmp_path)
    (tmp_path / "remote-tmp").mkdir()
    folder = tmp_path / "home" / ".ssh"
    folder.mkdir(parents=True, mode=0o700)
    for name in ("host", "id_ed25519"):
        key = asyncssh.generate_private_key("ssh-ed25519")
        key.write_private_key(folder / name)
        key.write_public_key(folder / f"{name}.pub")
    for name in (*cluster.ENVIRONMENT, "HADOOP_CONF_DIR"):  # a host's own would count
        monkeypatch.delenv(name, raising=False)
    server = (sys.executable, "-m", "tests.graphmill.cluster.ssh_server")
    environment = {**os.environ, "TMPDIR": str(tmp_path / "remote-tmp")}
    with speaking(*server, folder / "host", folder / "id_ed25519.pub", env=environment) as (process, port):
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}")
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        yield f"tester@127.0.0.1:{port}", process.pid


# A worker logs its address, then this line, then joins the cluster.
SLOW_TO_JOIN = (
    "import logging, time; dask_setup = lambda worker: logging.getLogger('distributed.worker').addFilter("
    "lambda record: 'Waiting to connect' not in record.msg or not time.sleep(1))"
)


@pytest.mark.slow
def test_workers_come_by_ssh_and_are_waited_for(ssh_server, tmp_path, monkeypatch):
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop/of-this-test")
    slow = dask.config.set({"distributed.worker.preload": [SLOW_TO_JOIN]})
    with slow, cluster.connect(f"ssh://{ssh_server[0]}", ClusterConfig(num_workers=1)) as client:
        assert len(cluster.worker_addresses(client)) == 1
        pids = client.run(os.getpid).values()
        assert os.getpid() not in pids
        for variable, value in cluster.ENVIRONMENT.items():
            assert client.submit(os.getenv, variable).result() == value
        assert client.submit(os.getenv, "HADOOP_CONF_DIR").result() == "/etc/hadoop/of-this-test"
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    wait_until(lambda: not found_in(tmp_path / "remote-tmp", "**/*.pem"))


RUN = """
import sys, time
from graphmill import cluster
from graphmill.config.sections.cluster import ClusterConfig
with cluster.connect(sys.argv[1], ClusterConfig(num_workers=1)) as client:
    print(client.scheduler_info()["address"], flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_neither_other_users_nor_other_keys_can_connect(ssh_server, tmp_path, forked):
    host, server = ssh_server
    run = forked.start("python", "-c", RUN, f"ssh://{host}")
    wait_until(lambda: run.read("stdout").endswith("\n") or not run.is_running())
    address = run.read("stdout").strip()
    assert address.startswith("tls://"), run.read("stderr")
    keys = found_in(tmp_path / "remote-tmp", "**/*.pem")
    assert len(keys) == 2  # the scheduler's and the worker's
    for key in keys:
        assert (key.stat().st_mode & 0o777, key.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert asyncio.run(stranger.who_answers([(address, new_keys().security())])) == []
    processes = stranger.tree(server)
    assert {ip for ip, _ in stranger.listening(processes)} <= {"127.0.0.1", get_ip()}
    if os.geteuid() == 0:
        assert stranger.attempts(forked, tmp_path, processes) == []
    run.send(signal.SIGKILL)
    run.wait(-signal.SIGKILL)
    wait_until(lambda: not found_in(tmp_path / "remote-tmp", "graphmill-keys-*"))
    wait_until(lambda: stranger.tree(server) == [server])


def test_an_interpreter_that_hangs_or_is_missing_there_and_a_host_whose_key_is_not_known(
    ssh_server: tuple[str, int], tmp_path: Path
) -> None:
    host, server = ssh_server
    hanging = executable(tmp_path / "python", "exec cat")
    for python, timeout_s, message in ((hanging, 2, "within 2"), ("/no/python", 300, "failed to start")):
        settings = ClusterConfig(num_workers=1, python=str(python), start_timeout_s=timeout_s)
        with pytest.raises(ClusterError, match=message), cluster.connect(f"ssh://{host}", settings):
            pass
    wait_until(lambda: stranger.tree(server) == [server])
    (tmp_path / "home" / ".ssh" / "known_hosts").write_text("")
    with pytest.raises(ClusterError, match="does not answer"), cluster.connect(f"ssh://{host}", settings):
        pass


def test_hosts_of_an_ssh_master() -> None:
    parsed = list(parse("ssh://a,me@b.example:2222"))
    assert parsed == [("a", {}), ("b.example", {"username": "me", "port": 2222})]
    with pytest.raises(ConfigError, match=r"expected ssh://\[USER@\]HOST"):
        list(parse("ssh://a,,b"))
