"""OpenLineage events, and metrics for Prometheus: what they say, as others' classes and parsers read them."""

import socket
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distributed.client import default_client
from prometheus_client.parser import text_string_to_metric_families

from graphmill.cli.stages import STAGES
from graphmill.cluster import Losses
from graphmill.cluster.workers import described_workers
from graphmill.config.sections.cluster import ClusterConfig
from graphmill.display import progress
from graphmill.errors import ConfigError
from graphmill.monitoring import lineage, server
from graphmill.monitoring.lineage import Lineage, dataset, emitting_lineage
from graphmill.monitoring.metrics import Metrics
from graphmill.run.record import RunRecord
from tests.graphmill.monitoring.lineage_server import check_event, lineage_server
from tests.logged import messages_of
from tests.train.graphs import make_config

RUN_ID = "0190e8a4-6f3b-7a56-8c8d-0f2a33a1f0aa"


@pytest.mark.slow
def test_events_tell_of_stages_and_their_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = make_config(tmp_path)
    with lineage_server() as collected:
        monkeypatch.setenv("OPENLINEAGE_URL", collected.url)
        monkeypatch.setenv("OPENLINEAGE_API_KEY", "word")
        monkeypatch.setenv("OPENLINEAGE_NAMESPACE", "shop")
        monkeypatch.setenv("OPENLINEAGE_PARENT_ID", f"airflow/eu/daily.train/{RUN_ID}")
        with emitting_lineage(settings, STAGES, "s3://key:secret@out/run.json") as observer:
            observer("train", {"status": "running"})
            observer("train", {"status": "done", "seconds": 1.5, "metrics": {"mrr": 0.5}, "reasons": ["x"]})
            observer("remap", {"status": "left out"})
            observer("evaluate", {"status": "running"})
            observer("evaluate", {"status": "failed", "error": "DataError: no edges"})
            observer("", {"status": "failed", "error": "DataError: no edges"})
    for event in collected.events:
        check_event(event)
    assert set(collected.posts) == {("/api/v1/lineage", "Bearer word")}
    assert collected.told() == [
        ("START", "graphmill"),
        ("START", "graphmill.train"),
        ("COMPLETE", "graphmill.train"),
        ("START", "graphmill.evaluate"),
        ("FAIL", "graphmill.evaluate"),
        ("FAIL", "graphmill"),
    ]
    whole, begun, done, _, failed, end = collected.events
    assert whole["run"]["runId"] == end["run"]["runId"]
    assert whole["run"]["facets"]["parent"]["job"] == {"namespace": "airflow/eu", "name": "daily.train"}
    assert begun["run"]["runId"] == done["run"]["runId"] != failed["run"]["runId"]
    assert begun["run"]["facets"]["parent"]["run"]["runId"] == whole["run"]["runId"]
    assert {"namespace": "file", "name": settings.entity_path} in begun["inputs"]
    assert begun["outputs"] == [{"namespace": "file", "name": settings.checkpoint_path}]
    assert done["run"]["facets"]["graphmill"]["figures"] == {"seconds": 1.5}
    assert done["run"]["facets"]["graphmill"]["metrics"] == {"mrr": 0.5}
    assert "secret" not in str(collected.events)
    assert failed["run"]["facets"]["errorMessage"]["message"] == "DataError: no edges"


def test_no_url_no_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENLINEAGE_URL", raising=False)
    with emitting_lineage(make_config(tmp_path), STAGES, "run.json") as observer:
        assert not isinstance(observer, Lineage)
    monkeypatch.setenv("OPENLINEAGE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("OPENLINEAGE_DISABLED", "True")
    with emitting_lineage(make_config(tmp_path), STAGES, "run.json") as observer:
        assert not isinstance(observer, Lineage)


@pytest.mark.slow
@pytest.mark.parametrize("listening", [True, False], ids=["silent", "refusing"])
def test_a_server_that_does_not_answer_costs_one_warning(listening, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(lineage, "TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("OPENLINEAGE_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        if not listening:  # else the kernel accepts connections
            server.close()
        emitting = emitting_lineage(make_config(tmp_path), STAGES, "run.json")
        # a message takes longer than the run waits for the last event
        with caplog.filtering(lambda _: time.sleep(0.3) is None), emitting as observer:
            for _ in range(20):
                observer("train", {"status": "running"})
    (warning,) = messages_of(caplog)
    assert "the run goes on without events" in warning


@pytest.mark.slow
def test_a_token_goes_to_no_other_host(tmp_path, monkeypatch, caplog):
    with lineage_server() as other, lineage_server(f"{other.url}/api/v1/lineage") as named:
        monkeypatch.setenv("OPENLINEAGE_URL", named.url)
        monkeypatch.setenv("OPENLINEAGE_API_KEY", "word")
        with emitting_lineage(make_config(tmp_path), STAGES, "run.json") as observer:
            observer("train", {"status": "running"})
    assert named.posts == [("/api/v1/lineage", "Bearer word")]
    assert not other.posts
    (warning,) = messages_of(caplog)
    assert "302" in warning


@pytest.mark.parametrize("url", ["https://word@host", "http://me:wo/rd@host"])
def test_a_token_in_the_url_is_refused_unseen(tmp_path, url, monkeypatch, caplog):
    monkeypatch.setenv("OPENLINEAGE_URL", url)
    with emitting_lineage(make_config(tmp_path), STAGES, "run.json") as observer:
        assert not isinstance(observer, Lineage)
    assert "a token goes to OPENLINEAGE_API_KEY" in caplog.text
    assert "word" not in caplog.text


def test_a_broken_stage_entry_ends_no_run(tmp_path, monkeypatch, caplog):
    with lineage_server() as collected:
        monkeypatch.setenv("OPENLINEAGE_URL", collected.url)
        with emitting_lineage(make_config(tmp_path), STAGES, "run.json") as observer:
            observer("no such stage", {"status": "running"})
    assert "no event: KeyError" in caplog.text


def test_metrics_have_no_secret_and_no_flag() -> None:
    stages = {"evaluate": {"filtered": True, "seconds": 2}}
    record: Any = SimpleNamespace(uri="s3://key:secret@out/run.json", content={"stages": stages})
    samples = [sample for metric in Metrics(record, None).collect() for sample in metric.samples]
    assert "secret" not in str(samples)
    assert [sample.labels["figure"] for sample in samples if "figure" in sample.labels] == ["seconds"]


@pytest.mark.parametrize(
    ("uri", "namespace", "name"),
    [
        ("hdfs://namenode:8020/data/shop/", "hdfs://namenode:8020", "/data/shop"),
        ("hdfs:///data/shop", "hdfs://cluster", "/data/shop"),
        ("s3://bucket/data/shop", "s3://bucket", "data/shop"),
        ("/data/shop", "file", "/data/shop"),
        ("file:///data/shop", "file", "/data/shop"),
    ],
)
def test_datasets_are_named_as_openlineage_does(uri, namespace, name, tmp_path, monkeypatch):
    setting = "<property><name>fs.defaultFS</name><value>hdfs://cluster</value></property>"
    (tmp_path / "core-site.xml").write_text(f"<configuration>{setting}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert dataset(uri) == {"namespace": namespace, "name": name}


def scraped(log: str) -> dict[tuple[str, ...], float]:
    """The values at the address in the log, by name and the sorted values of labels."""
    (url,) = (word for word in log.split() if word.startswith("http://"))
    with urllib.request.urlopen(url, timeout=60) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    samples = [sample for family in families for sample in family.samples]
    return {(each.name, *sorted(each.labels.values())): each.value for each in samples}


@pytest.mark.usefixtures("near_client")
def test_what_a_run_does_is_served(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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


def test_without_a_port_nothing_listens_and_a_taken_port_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "graphmill"), server.served(ClusterConfig()):
        progress.report("training", 40, 100, "edges")
    assert not messages_of(caplog)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"metrics_port: {port}: Address already in use"):
            server.served(ClusterConfig(metrics_port=port)).__enter__()


def test_metrics_listen_where_the_dashboard_does(caplog: pytest.LogCaptureFixture) -> None:
    open_to_all = ClusterConfig(metrics_port=0, dashboard_address=":8787")
    with caplog.at_level("INFO", "graphmill"), server.served(open_to_all):
        port = int(caplog.text.rsplit(":", 1)[1].partition("/")[0])
        socket.create_connection((socket.gethostname(), port), timeout=60).close()
