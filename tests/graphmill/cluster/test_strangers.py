"""Other users and clients without the key cannot connect to a run on this machine."""

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from distributed import Client, Security

from graphmill import cluster
from graphmill.cluster.keys import new_keys
from graphmill.config import validated
from graphmill.config.sections.cluster import ClusterConfig
from graphmill.errors import ConfigError
from graphmill.storage import run_folder
from tests.forked import Forks
from tests.graphmill.cluster import stranger
from tests.processes import speaking
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

# Starts a worker, and ends with its standard input.
RUN = """
import sys
from graphmill import cluster
from graphmill.config.sections.cluster import ClusterConfig
if __name__ == "__main__":
    with cluster.connect("local[1]", ClusterConfig(tls=sys.argv[1])) as client:
        print("ready", flush=True)
        sys.stdin.read()
"""


@contextmanager
def run_in(folder: Path, tls: str) -> Iterator[list[int]]:
    """The processes of a run that has its temporary files in `folder`."""
    stranger.open_to_all(folder)
    (folder / "run.py").write_text(RUN)
    environment = {**os.environ, "TMPDIR": str(folder)}
    with speaking(sys.executable, folder / "run.py", tls, env=environment) as (run, told):
        assert told == "ready"
        yield stranger.tree(run.pid)


def test_a_local_run_listens_on_loopback_only_and_lets_no_other_user_in(tmp_path, forked):
    with run_in(tmp_path, "auto") as processes:
        found = stranger.listening(processes)
        assert len(found) >= 3  # the scheduler, a nanny, a worker
        assert {address for address, _ in found} == {"127.0.0.1"}
        assert not [name for name in stranger.unix_sockets(processes) if name.startswith("@")]
        if os.geteuid() == 0:  # only root can become another user
            assert stranger.attempts(forked, tmp_path, processes) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_can_connect_with_tls_off(tmp_path: Path, forked: Forks) -> None:
    expected = ["Nanny", "Scheduler", "Worker"]
    with run_in(tmp_path, "off") as processes:

        def who_answers() -> list[str]:
            return sorted(each.split()[0] for each in stranger.attempts(forked, tmp_path, processes))

        wait_until(lambda: who_answers() == expected)  # a slow machine answers too late at first


@pytest.mark.usefixtures("forking_workers")
def test_the_keys_of_a_run_are_in_a_file_that_goes_with_it() -> None:
    with cluster.connect("local[1]", ClusterConfig()) as client:
        config = client.security.get_tls_config_for_role("client")
        path = Path(config["key"])
        assert path.is_relative_to(run_folder.path()), "a killed run leaves them"
        assert path.stat().st_mode & 0o777 == 0o600
        assert {*config.values()} == {None, str(path)}, "Dask would write keys in memory to TMPDIR"
    assert not path.exists()


def test_without_the_key_no_one_is_answered(local_run: Client) -> None:
    none = Security(require_encryption=False)
    other = Security(**new_keys().options() | {"require_encryption": False})
    scheduler, worker = addresses = [local_run.scheduler.address, *cluster.worker_addresses(local_run)]
    assert scheduler.startswith("tls://")
    plain = [address.replace("tls://", "tcp://") for address in addresses]
    refused = [(address, security) for address in addresses + plain for security in (none, other)]
    assert asyncio.run(stranger.who_answers(refused)) == []
    with_key = [(address, local_run.security) for address in addresses]
    answers = [f"Scheduler at {scheduler} answers", f"Worker at {worker} answers"]
    assert asyncio.run(stranger.who_answers(with_key, timeout_s=300)) == answers
    assert local_run.submit(sum, [1, 2]).result() == 3


@pytest.mark.usefixtures("forking_workers")
def test_tls_off_accepts_every_client_and_warns(caplog: pytest.LogCaptureFixture) -> None:
    with cluster.connect("local[1]", ClusterConfig(tls="off")) as client:
        address = client.scheduler_info()["address"]
        assert address.startswith("tcp://")
        assert [text for text in caplog.messages if "cluster.tls: off: whoever reaches" in text]


def test_a_running_cluster_without_encryption_gets_a_warning(client, caplog):
    with cluster.connect(client.scheduler_info()["address"], ClusterConfig()):
        pass
    with pytest.raises(ConfigError, match=r"tls://h:1: set cluster\.tls to the ca_file"):
        cluster.connect("tls://h:1", ClusterConfig()).__enter__()
    assert len([text for text in caplog.messages if "is not encrypted: whoever reaches" in text]) == 1


def test_values_of_cluster_tls() -> None:
    for given, meant in (("auto", "auto"), ("off", "off"), (False, "off"), (None, "auto")):
        assert validated(ClusterConfig, {"tls": given}).tls == meant
    wrong: dict[str, object] = {
        r"cluster\.tls: expected auto, off, or ca_file, cert_file and key_file, found 'on'": "on",
        r"cluster\.tls\.key_file: missing": {"ca_file": "a", "cert_file": "b"},
    }
    for message, value in wrong.items():
        with pytest.raises(ConfigError, match=message):
            validated(ClusterConfig, {"tls": value}, prefix=("cluster",))
