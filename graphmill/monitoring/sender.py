"""Delivery of OpenLineage events by HTTP, beside the run: a server that does not answer delays nothing.

Events go in order, from a thread of their own. The first failure is logged, and later events are dropped. The
end of a run waits a few seconds for its last events.

    OPENLINEAGE_URL        https://host:port; events are posted to its path, or to api/v1/lineage
    OPENLINEAGE_ENDPOINT   another path
    OPENLINEAGE_API_KEY    bearer token, for that server alone: a redirect is an error
    OPENLINEAGE_DISABLED   true: no events
"""

import logging
import queue
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPException
from urllib.parse import urljoin

from graphmill.storage.redaction import redacted, user_info

TIMEOUT_S = 5.0

log = logging.getLogger("graphmill")


def sender_of(environment: Mapping[str, str]) -> "Sender | None":
    """Make a sender to the server that the environment names, if any."""
    url = environment.get("OPENLINEAGE_URL")
    if not url or environment.get("OPENLINEAGE_DISABLED", "").strip().lower() == "true":
        return None
    if not url.startswith(("http://", "https://")):
        log.warning("OPENLINEAGE_URL: expected http://... or https://..., found %s: no events", redacted(url))
        return None
    if user_info(*url.split("://", 1)):
        log.warning("OPENLINEAGE_URL: a token goes to OPENLINEAGE_API_KEY, found one in the URL: no events")
        return None
    endpoint = environment.get("OPENLINEAGE_ENDPOINT") or "api/v1/lineage"
    return Sender(urljoin(url, endpoint), environment.get("OPENLINEAGE_API_KEY"))


class _Refused(urllib.request.HTTPRedirectHandler):
    """Treats a redirect as an error: events and token are not meant for another server."""

    def redirect_request(self, *_: object) -> None:
        """Return no further request."""


class Sender:
    """Posts events to a URL."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        authorization = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self.url, self._headers = url, {"Content-Type": "application/json"} | authorization
        self._events: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._first_warning = threading.Lock()  # never released

    @contextmanager
    def running(self) -> Iterator[None]:
        """Send during the block; then wait for the last events, at most TIMEOUT_S."""
        thread = threading.Thread(target=self._deliver, name="openlineage", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._events.put(None)
            thread.join(TIMEOUT_S)
            if thread.is_alive():
                self._warn(f"no answer within {TIMEOUT_S:g} s")

    def send(self, event: str) -> None:
        """Send an event, in JSON, later."""
        self._events.put(event)

    def _deliver(self) -> None:
        opener = urllib.request.build_opener(_Refused)
        try:
            while (event := self._events.get()) is not None:
                request = urllib.request.Request(self.url, event.encode(), self._headers)
                opener.open(request, timeout=TIMEOUT_S).close()
        except (OSError, HTTPException, ValueError) as error:
            self._warn(str(error) or type(error).__name__)

    def _warn(self, reason: str) -> None:
        if self._first_warning.acquire(blocking=False):
            log.warning("OpenLineage: %s: %s; the run goes on without events", redacted(self.url), reason)
