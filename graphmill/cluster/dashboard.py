"""Dask's dashboard of a scheduler in this process, made at the first request for one of its pages.

The dashboard needs Bokeh, and the import of Bokeh takes longer than a short run.
"""

import importlib.util
import socket
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

from distributed import Client, Scheduler
from tornado import web

from graphmill.cluster.settings import LOOPBACK

_TIMEOUT_S = 5.0
_NOT_FOUND = 404


def is_installed() -> bool:
    """Tell whether Bokeh is installed."""
    return importlib.util.find_spec("bokeh") is not None


def offer(scheduler: Scheduler) -> None:
    """Let the first request for a page at the scheduler's HTTP address make the dashboard."""
    if is_installed():
        scheduler.http_application.add_application(
            web.Application([(r".*", _Maker, {"scheduler": scheduler})])
        )


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
    """Tell whether the page is there, without asking for the page: that would make the dashboard."""
    try:
        if scheme == "https":
            socket.create_connection((host, port), _TIMEOUT_S).close()
            return True
        connection = HTTPConnection(host, port, timeout=_TIMEOUT_S)
        try:
            connection.request("HEAD", "/status")
            return connection.getresponse().status != _NOT_FOUND
        finally:
            connection.close()
    except (OSError, HTTPException):
        return False


class _Maker(web.RequestHandler):
    """Makes the dashboard, then redirects to the same page."""

    def initialize(self, scheduler: Scheduler) -> None:
        """Called by tornado."""
        self.scheduler = scheduler

    async def get(self) -> None:
        """Called by tornado, in the scheduler's own thread."""
        application = self.scheduler.http_application
        if self.application in application.applications:
            application.applications.remove(self.application)
            from distributed.dashboard.scheduler import connect

            connect(application, self.scheduler.http_server, self.scheduler)
        self.redirect("/" + self.request.uri.lstrip("/"))
