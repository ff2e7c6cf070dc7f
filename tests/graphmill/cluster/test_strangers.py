"""Other users and clients without the key cannot connect to a run on this machine; TLS by configuration."""

import asyncio
import hashlib
import logging
import os
import queue
import re
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import QueueHandler
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import dask
import pytest
from distributed import Client, Security

from graphmill import cluster
from graphmill.cluster import dashboard
from graphmill.cluster.keys import keys_in_files, new_keys
from graphmill.cluster.local import scheduler_here
from graphmill.cluster.settings import DRIVER_VARIABLE
from graphmill.config import validated
from graphmill.config.masters import kind_of
from graphmill.config.sections.cluster import ClusterConfig, TlsConfig
from graphmill.errors import ClusterError, ConfigError
from graphmill.storage import run_folder
from tests.forked import Forks
from tests.graphmill.cluster import stranger
from tests.graphmill.cluster.certificates import certificates
from tests.processes import speaking
from tests.waiting import wait_until

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
@pytest.mark.slow
def test_the_keys_of_a_run_are_in_a_file_that_goes_with_it() -> None:
    with cluster.connect("local[1]", ClusterConfig()) as client:
        config = client.security.get_tls_config_for_role("client")
        path = Path(config["key"])
        assert path.is_relative_to(run_folder.path()), "a killed run leaves them"
        assert path.stat().st_mode & 0o777 == 0o600
        assert {*config.values()} == {None, str(path)}, "Dask would write keys in memory to TMPDIR"
    assert not path.exists()


@pytest.mark.slow
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
@pytest.mark.slow
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


def settings(folder: Path, name: str = "cluster") -> ClusterConfig:
    return ClusterConfig(tls=TlsConfig(**certificates(folder, name)))


@pytest.mark.usefixtures("forking_workers")
@pytest.mark.slow
def test_a_cluster_with_certificates_lets_those_in_that_have_them(tmp_path: Path) -> None:
    own = settings(tmp_path)
    other = settings(tmp_path, "other").model_copy(update={"connect_timeout_s": 2})
    with cluster.connect("local[1]", own) as client:
        address = client.scheduler_info()["address"]
        assert address.startswith("tls://")
        assert client.submit(os.getpid).result() != os.getpid()
        with cluster.connect(address, own) as joined:
            assert joined.submit(sum, [1, 2]).result() == 3
        with pytest.raises(ClusterError, match="does not answer"), cluster.connect(address, other):
            pass


def test_keys_that_are_none_are_refused_and_a_missing_file_is_named(tmp_path: Path) -> None:
    good = settings(tmp_path)
    (tmp_path / "junk.pem").write_text("junk")
    assert isinstance(good.tls, TlsConfig)
    for key in TlsConfig.model_fields:
        bad = good.tls.model_copy(update={key: str(tmp_path / "junk.pem")})
        with pytest.raises(ConfigError, match=r"cluster\.tls: expected certificates .*junk\.pem"):
            keys_in_files(bad)
    missing = good.tls.model_copy(update={"key_file": str(tmp_path / "none.pem")})
    with pytest.raises(ConfigError, match=r"cluster\.tls\.key_file: .*none\.pem: there is no such file"):
        cluster.connect("local[1]", ClusterConfig(tls=missing)).__enter__()


@pytest.mark.slow
def test_the_dashboard_is_on_loopback_and_made_when_somebody_looks(local_run: Client) -> None:
    server = local_run.cluster.scheduler.http_server
    assert {socket.getsockname()[0] for socket in server._sockets.values()} == {"127.0.0.1"}
    applications = local_run.cluster.scheduler.http_application.applications
    assert not any("/status" in getattr(each, "app_paths", ()) for each in applications)
    link = local_run.dashboard_link
    for url in (link, link, link.replace("/status", "/")):
        with urlopen(url, timeout=300) as answer:
            assert (answer.status, answer.url) == (200, link)
            assert b"Dask" in answer.read()


def test_the_address_of_a_dashboard_can_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """The case of --master yarn: the scheduler has one address, and its dashboard listens at another."""
    starting = scheduler_here(ClusterConfig(tls="off"), None, host="127.0.0.2", n_workers=0)
    with starting as here, Client(here) as client:
        assert client.dashboard_link.startswith("http://127.0.0.2:")
        assert dashboard.address(client, is_here=False) is None
        address = dashboard.address(client, is_here=True)
        assert address == client.dashboard_link.replace("127.0.0.2", "127.0.0.1")
        with urlopen(address.replace("/status", "/health"), timeout=60) as answer:
            assert answer.read() == b"ok"
        applications = client.cluster.scheduler.http_application.applications
        assert not any("/status" in getattr(each, "app_paths", ()) for each in applications)
        # behind the loopback address of another network it is named by its tunnel
        told = dashboard.described(client, kind_of("yarn"), None)
        tunnel = r"ssh -L (\d+):127.0.0.1:\1 \S+, then http://127.0.0.1:\1/status"
        assert re.fullmatch(tunnel, told or ""), told
        with dask.config.set({"distributed.dashboard.link": "/user/me/proxy/{port}/status"}):  # as configured
            assert re.fullmatch(r"/user/me/proxy/\d+/status", dashboard.address(client, is_here=True) or "")
        monkeypatch.setenv(DRIVER_VARIABLE, "1")  # nobody has a tunnel into a container
        assert dashboard.described(client, kind_of("yarn"), None) is None


@pytest.mark.usefixtures("forking_workers")
@pytest.mark.slow
def test_a_dashboard_for_the_network_has_the_certificate_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    told = queue.SimpleQueue[logging.LogRecord]()
    monkeypatch.setattr(logging.getLogger("graphmill"), "handlers", [QueueHandler(told)])
    monkeypatch.setattr(logging.getLogger("graphmill"), "level", logging.INFO)
    with cluster.connect("local[1]", ClusterConfig(dashboard_address=":0")) as client:
        lines = [told.get().getMessage() for _ in range(told.qsize())]
        (line,) = (line for line in lines if line.startswith("dashboard:"))
        certified = r"dashboard: (https:\S+) \(certificate: SHA-256 (\w+)\)"
        address, fingerprint = re.fullmatch(certified, line).groups()
        place = urlsplit(address)
        pem = ssl.get_server_certificate((place.hostname or "", place.port or 0))
        assert hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest() == fingerprint
        trusting = ssl.create_default_context(cadata=pem)
        trusting.check_hostname = False
        with urlopen(address.replace("/status", "/health"), timeout=300, context=trusting) as answer:
            assert answer.read() == b"ok"
        of_the_run = client.security.get_connection_args("client")["ssl_context"]
        assert of_the_run.get_ca_certs(binary_form=True) == [ssl.PEM_cert_to_DER_cert(pem)]
