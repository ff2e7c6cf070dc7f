"""Metrics for Prometheus, as its own parser reads them."""

import socket
import urllib.request
from pathlib import Path

import pytest
from distributed import Client
from distributed.client import default_client
from prometheus_client.parser import text_string_to_metric_families

from graphmill.cluster import Losses
from graphmill.cluster.workers import described_workers
from graphmill.config.sections.cluster import ClusterConfig
from graphmill.display import progress
from graphmill.errors import ConfigError
from graphmill.monitoring import server
from graphmill.run.record import RunRecord
from tests.train.graphs import make_config


def scraped(log: str) -> dict[tuple[str, ...], float]:
    """The values at the address in the log, by name and the sorted values of labels."""
    (url,) = (word for word in log.split() if word.startswith("http://"))
    with urllib.request.urlopen(url, timeout=60) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }


def test_what_a_run_does_is_served(tmp_path: Path, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    settings = make_config(tmp_path)
    record = RunRecord(str(tmp_path / "run.json"), settings)
    losses = Losses()
    with caplog.at_level("INFO", "graphmill"), server.served(ClusterConfig(metrics_port=0), record, losses):
        progress.report("training", 0, 100, "edges")
        progress.report("training", 40, 100, "edges", epoch="1/2", loss=0.25, wait_share=0.5)
        record.write_stage("etl", {"status": "done", "seconds": 2.5, "num_rows": 9, "table": "x"})
        losses.num_workers = 3
        found = scraped(caplog.text)
    assert found["graphmill_work_done", "edges", "training"] == 40
    assert found["graphmill_work_total", "edges", "training"] == 100
    assert found["graphmill_work_per_second", "edges", "training"] > 0
    assert found["graphmill_work_figure", "loss", "training"] == 0.25
    assert found["graphmill_work_figure", "training", "wait_share"] == 0.5
    assert found["graphmill_stage_status", "done", "etl"] == 1
    assert found["graphmill_stage_figure", "etl", "num_rows"] == 9
    assert found["graphmill_workers_lost_total",] == 3
    num_workers = len(described_workers(default_client()))  # of another test's client, maybe
    assert found["graphmill_workers",] == num_workers > 0
    memory = [value for (name, *_), value in found.items() if name == "graphmill_worker_memory_bytes"]
    assert len(memory) == num_workers
    assert min(memory) > 1e6
    assert found["process_resident_memory_bytes",] > 1e7
    assert any(name == "graphmill_run_info" and str(tmp_path) in labels for name, *labels in found)


def test_without_a_port_nothing_listens(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "graphmill"), server.served(ClusterConfig()):
        progress.report("training", 40, 100, "edges")
    assert caplog.text == ""


def test_a_taken_port_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"metrics_port: {port}: Address already in use"):
            server.served(ClusterConfig(metrics_port=port)).__enter__()


def test_metrics_listen_where_the_dashboard_does(caplog: pytest.LogCaptureFixture) -> None:
    open_to_all = ClusterConfig(metrics_port=0, dashboard_address=":8787")
    with caplog.at_level("INFO", "graphmill"), server.served(open_to_all):
        port = int(caplog.text.rsplit(":", 1)[1].partition("/")[0])
        socket.create_connection((socket.gethostname(), port), timeout=60).close()
