"""OpenLineage events of a run and its stages, sent to $OPENLINEAGE_URL.

Jobs, data sets, facets and variables: docs/how_to/monitoring.md. Events are those of version 2-0-2:
https://openlineage.io/spec/2-0-2/OpenLineage.json; data sets have the names of https://openlineage.io/docs/spec/naming.

Delivery of OpenLineage events by HTTP, beside the run: a server that does not answer delays nothing.

Events go in order, from a thread of their own. The first failure is logged, and later events are dropped. The
end of a run waits a few seconds for its last events.

    OPENLINEAGE_URL        https://host:port; events are posted to its path, or to api/v1/lineage
    OPENLINEAGE_ENDPOINT   another path
    OPENLINEAGE_API_KEY    bearer token, for that server alone: a redirect is an error
    OPENLINEAGE_DISABLED   true: no events
"""

import json
import logging
import os
import queue
import threading
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from http.client import HTTPException
from typing import Any
from urllib.parse import urljoin

from graphmill import __version__
from graphmill.config import Config
from graphmill.run.job import Stage
from graphmill.run.record import Observer
from graphmill.storage import hadoop_conf, uri
from graphmill.storage.redaction import redacted, user_info

Json = dict[str, Any]

NAMESPACE_VARIABLE = "OPENLINEAGE_NAMESPACE"
PARENT_VARIABLE = "OPENLINEAGE_PARENT_ID"
PRODUCER = f"urn:graphmill:{__version__}"
_SPEC = "https://openlineage.io/spec"
_EVENT = f"{_SPEC}/2-0-2/OpenLineage.json#/$defs"
_TYPES = {"running": "START", "done": "COMPLETE", "failed": "FAIL"}
_BUCKETS = ("s3", "s3a", "s3n", "gs", "abfs", "abfss", "wasb", "wasbs")  # their names have no leading slash

log = logging.getLogger("graphmill")

TIMEOUT_S = 5.0


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

    def __init__(self, url: str, api_key: str | None) -> None:
        authorization = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self.url, self._headers = url, {"Content-Type": "application/json"} | authorization
        self._events: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._has_warned, self._warning = False, threading.Lock()

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
        with self._warning:  # the run waits until the message is written
            if not self._has_warned:
                log.warning("OpenLineage: %s: %s; the run goes on without events", redacted(self.url), reason)
            self._has_warned = True


@contextmanager
def emitting_lineage(settings: Config, stages: Sequence[Stage], record_uri: str) -> Iterator[Observer]:
    """Yield what sends an event for each change of run.json; without $OPENLINEAGE_URL, what does nothing."""
    sender = sender_of(os.environ)
    if sender is None:
        yield lambda stage, content: None
        return
    with sender.running():
        yield Lineage(settings, stages, record_uri, sender.send)


class Lineage:
    """Tells of one run and its stages."""

    def __init__(
        self, settings: Config, stages: Sequence[Stage], record_uri: str, send: Callable[[str], None]
    ) -> None:
        self.jobs = {stage.name: stage.job for stage in stages}
        self.settings, self.record_uri, self.send = settings, record_uri, send
        self.namespace = os.environ.get(NAMESPACE_VARIABLE) or "default"
        self.name = settings.cluster.name
        self._run_ids: dict[str, str] = {}

    def __call__(self, stage: str, content: Mapping[str, Any]) -> None:
        """Send an event for the new content of a stage's entry, or of run.json for stage ""."""
        try:
            if not self._run_ids:
                self._tell("", "START", {})
            if kind := _TYPES.get(content.get("status", "")):
                self._tell(stage, kind, content)
        except Exception as error:  # what watches a run must not end it
            log.warning("OpenLineage: no event: %s: %s", type(error).__name__, error)

    def _tell(self, stage: str, kind: str, content: Mapping[str, Any]) -> None:
        run_id = self._run_ids.setdefault(stage, str(uuid.uuid4()))
        job = {"processingType": "BATCH", "integration": "GRAPHMILL", "jobType": "STAGE" if stage else "RUN"}
        inputs, outputs = self._datasets(stage)
        event = {
            "eventType": kind,
            "eventTime": datetime.now(UTC).isoformat(),
            "producer": PRODUCER,
            "schemaURL": f"{_EVENT}/RunEvent",
            "run": {"runId": run_id, "facets": self._run_facets(stage, content)},
            "job": {
                "namespace": self.namespace,
                "name": f"{self.name}.{stage}" if stage else self.name,
                "facets": {"jobType": _facet("facets/2-0-4/JobTypeJobFacet", job)},
            },
            "inputs": inputs,
            "outputs": outputs,
        }
        self.send(redacted(json.dumps(event)))

    def _datasets(self, stage: str) -> tuple[list[Json], list[Json]]:
        if not stage:
            return [], []
        job = self.jobs[stage]
        inputs, outputs = job.input_uris(self.settings), job.output_uris(self.settings)
        return [dataset(of_table) for of_table in inputs], [dataset(output) for output in outputs]

    def _run_facets(self, stage: str, content: Mapping[str, Any]) -> Json:
        engine = {"version": __version__, "name": "GraphMill", "openlineageAdapterVersion": __version__}
        numbers = {name: value for name, value in content.items() if isinstance(value, int | float)}
        own = {"record": self.record_uri, "figures": numbers, "metrics": content.get("metrics") or {}}
        facets = {
            "processing_engine": _facet("facets/1-1-1/ProcessingEngineRunFacet", engine),
            "graphmill": {"_producer": PRODUCER, "_schemaURL": f"{_EVENT}/RunFacet", **own},
        }
        if content.get("error"):
            message = {"message": str(content["error"]), "programmingLanguage": "python"}
            facets["errorMessage"] = _facet("facets/1-0-1/ErrorMessageRunFacet", message)
        if parent := self._parent(stage):
            facets["parent"] = _facet("facets/1-2-0/ParentRunFacet", parent)
        return facets

    def _parent(self, stage: str) -> Json | None:
        if stage:
            job = {"namespace": self.namespace, "name": self.name}
            return {"run": {"runId": self._run_ids[""]}, "job": job}
        parts = os.environ.get(PARENT_VARIABLE, "").rsplit("/", 2)
        if len(parts) < 3:
            return None
        namespace, name, run_id = parts
        return {"run": {"runId": run_id}, "job": {"namespace": namespace, "name": name}}


def dataset(place: str) -> Json:
    """Name a file or folder as OpenLineage's naming of data sets says."""
    path = uri.local_path(place)
    if path is not None:
        return {"namespace": "file", "name": path}
    root, path = uri.split(place)
    if root == "hdfs://":  # without a host
        root = hadoop_conf.settings().get("fs.defaultFS", "hdfs://")
    path = path.rstrip("/")
    is_in_bucket = uri.scheme(place) in _BUCKETS
    return {"namespace": root.rstrip("/"), "name": path.lstrip("/") if is_in_bucket else path or "/"}


def _facet(path: str, content: Json) -> Json:
    name = path.rpartition("/")[2]
    return {"_producer": PRODUCER, "_schemaURL": f"{_SPEC}/{path}.json#/$defs/{name}", **content}
