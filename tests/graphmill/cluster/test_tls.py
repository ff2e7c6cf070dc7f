"""TLS between Dask's processes, by configuration."""

import hashlib
import logging
import os
import queue
import re
import ssl
from logging.handlers import QueueHandler
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import dask
import pytest
from distributed import Client

from graphmill import cluster
from graphmill.cluster import dashboard
from graphmill.cluster.keys import keys_in_files
from graphmill.cluster.local import scheduler_here
from graphmill.cluster.settings import DRIVER_VARIABLE
from graphmill.config.masters import kind_of
from graphmill.config.sections.cluster import ClusterConfig, TlsConfig
from graphmill.errors import ClusterError, ConfigError
from tests.graphmill.cluster.certificates import certificates


def settings(folder: Path, name: str = "cluster") -> ClusterConfig:
    return ClusterConfig(tls=TlsConfig(**certificates(folder, name)))


@pytest.mark.usefixtures("forking_workers")
@pytest.mark.slow
def test_a_cluster_with_certificates_lets_those_in_that_have_them(tmp_path: Path) -> None:
    own = settings(tmp_path)
    stranger = settings(tmp_path, "stranger").model_copy(update={"connect_timeout_s": 5})
    with cluster.connect("local[1]", own) as client:
        address = client.scheduler_info()["address"]
        assert address.startswith("tls://")
        assert client.submit(os.getpid).result() != os.getpid()
        with cluster.connect(address, own) as joined:
            assert joined.submit(sum, [1, 2]).result() == 3
        with pytest.raises(ClusterError, match="does not answer"), cluster.connect(address, stranger):
            pass


def test_keys_that_are_none_are_refused(tmp_path: Path) -> None:
    good = settings(tmp_path)
    (tmp_path / "junk.pem").write_text("junk")
    assert isinstance(good.tls, TlsConfig)
    for key in TlsConfig.model_fields:
        bad = good.tls.model_copy(update={key: str(tmp_path / "junk.pem")})
        with pytest.raises(ConfigError, match=r"cluster\.tls: expected certificates .*junk\.pem"):
            keys_in_files(bad)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    files = certificates(tmp_path) | {"key_file": str(tmp_path / "none.pem")}
    with pytest.raises(ConfigError, match=r"cluster\.tls\.key_file: .*none\.pem: there is no such file"):
        cluster.connect("local[1]", ClusterConfig(tls=TlsConfig(**files))).__enter__()


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
