"""An HTTP server that collects OpenLineage events, and OpenLineage's own classes as their reader."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import error_message_run, job_type_job, parent_run, processing_engine_run

FACETS: dict[str, Any] = {
    "parent": parent_run.ParentRunFacet,
    "processing_engine": processing_engine_run.ProcessingEngineRunFacet,
    "errorMessage": error_message_run.ErrorMessageRunFacet,
    "jobType": job_type_job.JobTypeJobFacet,
}


class Collected:
    """The URL, and each event that was posted, with its path and authorization."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.events: list[dict[str, Any]] = []
        self.posts: list[tuple[str, str | None]] = []

    def told(self) -> list[tuple[str, str]]:
        """Types of the events with their jobs."""
        return [(each["eventType"], each["job"]["name"]) for each in self.events]


@contextmanager
def lineage_server(moved_to: str | None = None) -> Iterator[Collected]:
    """Collect posts; with `moved_to`, answer that they belong there."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collected.posts.append((self.path, self.headers["Authorization"]))
            collected.events.append(json.loads(body))
            self.send_response(302 if moved_to else 201)
            if moved_to:
                self.send_header("Location", moved_to)
            self.end_headers()

        def do_GET(self) -> None:
            collected.posts.append((self.path, self.headers["Authorization"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collected = Collected(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield collected
        finally:
            server.shutdown()
            thread.join()


def check_event(event: dict[str, Any]) -> None:
    """Make OpenLineage's own objects of an event: they refuse missing and unknown fields."""
    fields = dict(event)
    assert fields.pop("schemaURL") == RunEvent._get_schema()
    run, job = fields.pop("run"), fields.pop("job")
    RunEvent(
        run=Run(run["runId"], _facets(run["facets"])),
        job=Job(job["namespace"], job["name"], _facets(job["facets"])),
        inputs=[InputDataset(**each) for each in fields.pop("inputs")],
        outputs=[OutputDataset(**each) for each in fields.pop("outputs")],
        eventType=RunState(fields.pop("eventType")),
        **fields,
    )


def _facets(given: dict[str, Any]) -> dict[str, Any]:
    for name, facet in given.items():
        assert facet["_producer"].startswith("urn:graphmill:")
        if name in FACETS:
            own = {key: value for key, value in facet.items() if not key.startswith("_")}
            assert facet["_schemaURL"] == FACETS[name](**own)._get_schema()
        else:
            assert name == "graphmill"
            assert facet["_schemaURL"].startswith("https://openlineage.io/")
    return {}
