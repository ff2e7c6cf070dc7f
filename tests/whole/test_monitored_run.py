"""A whole run as its watchers see it: Prometheus, which asks, and OpenLineage, which is told."""

import socket
import threading
import urllib.request
from contextlib import suppress

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.finished import of_triples
from tests.graphmill.monitoring.lineage_server import check_event, lineage_server

STAGES = ("etl", "train", "evaluate", "remap")


class Prometheus:
    """Scrapes a port until it is told to stop."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.seen: set[tuple[str, ...]] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._scrape)

    def __enter__(self) -> "Prometheus":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _scrape(self) -> None:
        while not self._stop.wait(0.05):
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as answer:
                for family in text_string_to_metric_families(answer.read().decode()):
                    self.seen |= {(each.name, *sorted(each.labels.values())) for each in family.samples}


@pytest.mark.slow
def test_a_run_is_scraped_and_tells_of_its_lineage(triples, tmp_path, graphmill_command, monkeypatch):
    with lineage_server() as collected, Prometheus() as prometheus:
        monkeypatch.setenv("OPENLINEAGE_URL", collected.url)
        port = ["--metrics-port", str(prometheus.port), "--name", "shop"]
        assert graphmill_command("pipeline", *of_triples(triples, tmp_path / "out"), *port) == 0

    seen = prometheus.seen
    labels = {label for name, *own in seen if name == "graphmill_stage_status" for label in own}
    assert labels >= {*STAGES, "running", "done"}
    assert seen >= {
        ("graphmill_work_done", "edges", "training"),
        ("graphmill_work_figure", "loss", "training"),
        ("graphmill_work_figure", "training", "wait_share"),
        ("graphmill_stage_figure", "etl", "num_rows"),
        ("graphmill_workers",),
    }
    assert any(name == "graphmill_worker_memory_bytes" for name, *_ in seen)

    for event in collected.events:
        check_event(event)
    inside = [(kind, f"shop.{stage}") for stage in STAGES for kind in ("START", "COMPLETE")]
    assert collected.told() == [("START", "shop"), *inside, ("COMPLETE", "shop")]
    read, written = (
        {event["job"]["name"]: {place["name"] for place in event[what]} for event in collected.events}
        for what in ("inputs", "outputs")
    )
    assert str(triples / "train.txt") in read["shop.etl"]
    assert f"{tmp_path}/out/entities" in written["shop.etl"] & read["shop.train"]
    assert written["shop.train"] <= read["shop.evaluate"] & read["shop.remap"]
    assert written["shop.remap"] == {f"{tmp_path}/out/embeddings"}
