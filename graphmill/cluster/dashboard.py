"""Dask's dashboard of a scheduler in this process, made at the first request for one of its pages.

The dashboard needs Bokeh, and the import of Bokeh takes longer than a short run.
"""

import hashlib
import importlib.util
import socket
import ssl
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

from distributed import Client, Scheduler
from distributed.node import clean_dashboard_address
from tornado import web

from graphmill.cluster.keys import Keys
from graphmill.cluster.settings import is_driver
from graphmill.config.masters import Kind
from graphmill.config.sections.cluster import LOOPBACK
from graphmill.errors import ConfigError

_TLS = "distributed.scheduler.dashboard.tls"
_TIMEOUT_S = 5.0
_NO_PAGE = 404


def check(listens_at: str) -> None:
    """Refuse an address at which this machine cannot listen; instead of a taken port Dask takes another."""
    try:
        for place in clean_dashboard_address(listens_at):
            socket.create_server((place["address"], 0)).close()
            if not 0 <= place["port"] < 1 << 16:
                raise ValueError("a port has 16 bits")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cluster.dashboard_address: expected an address of this machine and a port, as {LOOPBACK}:0 or "
            f":8787, found {listens_at!r}: {error}"
        ) from error


def offer(scheduler: Scheduler) -> None:
    """Make the dashboard when somebody first asks for a page at the scheduler's HTTP address."""
    if importlib.util.find_spec("bokeh") is not None:
        scheduler.http_application.add_application(
            web.Application([(r".*", _Maker, {"scheduler": scheduler})])
        )


def tls(listens_at: str, keys: Keys | None) -> dict[str, str]:
    """Settings of Dask for a dashboard by https, with the run's certificate; none at the loopback address."""
    if keys is None or listens_at.rpartition(":")[0].strip("[]") in (LOOPBACK, "::1", "localhost"):
        return {}
    return {f"{_TLS}.cert": keys.cert, f"{_TLS}.key": keys.key}


def described(client: Client, kind: Kind, keys: Keys | None) -> str | None:
    """Return how to look at the dashboard from the network of this machine; None if that is not possible.

    The scheduler of a cluster of other machines may listen at the loopback address of this machine: then the
    way is through ssh, but not into a container.
    """
    is_open = address(client, is_here=kind.has_own_workers)
    if is_open or not kind.has_own_scheduler or is_driver():
        is_own = is_open and is_open.startswith("https:") and keys and keys.text
        return f"{is_open} (certificate: SHA-256 {_fingerprint(keys)})" if is_own and keys else is_open
    if (link := address(client, is_here=True)) is None:
        return None
    port = urlsplit(link).port
    return f"ssh -L {port}:{LOOPBACK}:{port} {socket.getfqdn()}, then {link}"


def _fingerprint(keys: Keys) -> str:
    """Return what a browser shows of the certificate that it cannot check otherwise."""
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    text = (keys.text or "").partition(end)[0].partition(begin)[2]
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(f"{begin}{text}{end}")).hexdigest()


def address(client: Client, *, is_here: bool) -> str | None:
    """Return an address of the dashboard that answers from this machine; None if there is none.

    Dask names the scheduler's host, though the dashboard may listen at the loopback address alone. With
    `is_here`, the scheduler runs on this machine.
    """
    link = None
    with suppress(KeyError):  # a scheduler without HTTP
        link = client.dashboard_link
    place = urlsplit(link or "")
    if not place.hostname or not place.port:
        return link  # behind a proxy that Dask's own configuration names
    for host in (place.hostname, *([LOOPBACK] if is_here else [])):
        if _answers(place.scheme, host, place.port):
            shown = f"[{host}]" if ":" in host else host
            return place._replace(netloc=f"{shown}:{place.port}").geturl()
    return None


def _answers(scheme: str, host: str, port: int) -> bool:
    """Tell whether the page is there; it is not requested, because that would make the dashboard."""
    try:
        if scheme == "https":
            socket.create_connection((host, port), _TIMEOUT_S).close()
            return True
        with closing(HTTPConnection(host, port, timeout=_TIMEOUT_S)) as connection:
            connection.request("HEAD", "/status")
            return connection.getresponse().status != _NO_PAGE
    except (OSError, HTTPException):
        return False


class _Maker(web.RequestHandler):
    """Makes the dashboard, then redirects to the same page."""

    def initialize(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler

    async def get(self) -> None:
        """Called by tornado, in the scheduler's own thread."""
        application = self.scheduler.http_application
        if self.application in application.applications:
            application.applications.remove(self.application)
            from distributed.dashboard.scheduler import connect

            connect(application, self.scheduler.http_server, self.scheduler)
        self.redirect("/" + self.request.uri.lstrip("/"))
