"""OpenLineage events: what they say, and that no server can stop a run."""

import socket
from pathlib import Path

import pytest

from graphmill.cli.stages import STAGES
from graphmill.monitoring import lineage
from graphmill.monitoring.lineage import dataset, emitting_lineage
from tests.graphmill.monitoring.lineage_server import check_event, lineage_server
from tests.train.graphs import make_config

RUN_ID = "0190e8a4-6f3b-7a56-8c8d-0f2a33a1f0aa"


@pytest.mark.slow
def test_events_tell_of_stages_and_their_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = make_config(tmp_path)
    with lineage_server() as collected:
        monkeypatch.setenv("OPENLINEAGE_URL", collected.url)
        monkeypatch.setenv("OPENLINEAGE_API_KEY", "word")
        monkeypatch.setenv("OPENLINEAGE_NAMESPACE", "shop")
        monkeypatch.setenv("OPENLINEAGE_PARENT_ID", f"airflow/daily.train/{RUN_ID}")
        with emitting_lineage(settings, STAGES, "s3://key:secret@out/run.json") as observer:
            assert observer is not None
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
    assert whole["run"]["facets"]["parent"]["job"] == {"namespace": "airflow", "name": "daily.train"}
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
        assert observer is None
    monkeypatch.setenv("OPENLINEAGE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("OPENLINEAGE_DISABLED", "True")
    with emitting_lineage(make_config(tmp_path), STAGES, "run.json") as observer:
        assert observer is None


def silent(server: socket.socket) -> None:
    """Connections are accepted, by the kernel, and never answered."""


def refusing(server: socket.socket) -> None:
    server.close()


@pytest.mark.slow
@pytest.mark.parametrize("behaviour", [silent, refusing])
def test_a_server_that_does_not_answer_costs_one_warning(
    behaviour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lineage, "TIMEOUT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("OPENLINEAGE_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        behaviour(server)
        with emitting_lineage(make_config(tmp_path), STAGES, "run.json") as observer:
            assert observer is not None
            for _ in range(20):
                observer("train", {"status": "running"})
    (warning,) = caplog.records
    assert "the run goes on without events" in warning.message


@pytest.mark.slow
def test_a_token_goes_to_no_other_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with lineage_server() as other, lineage_server(f"{other.url}/api/v1/lineage") as named:
        monkeypatch.setenv("OPENLINEAGE_URL", named.url)
        monkeypatch.setenv("OPENLINEAGE_API_KEY", "word")
        with emitting_lineage(make_config(tmp_path), STAGES, "run.json") as observer:
            assert observer is not None
            observer("train", {"status": "running"})
    assert named.posts == [("/api/v1/lineage", "Bearer word")]
    assert not other.posts
    (warning,) = caplog.records
    assert "302" in warning.message


@pytest.mark.parametrize("url", ["https://word@host", "https://me:word@host", "http://me:wo/rd@host"])
def test_a_token_in_the_url_is_refused_unseen(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OPENLINEAGE_URL", url)
    with emitting_lineage(make_config(tmp_path), STAGES, "run.json") as observer:
        assert observer is None
    assert "a token goes to OPENLINEAGE_API_KEY" in caplog.text
    assert "word" not in caplog.text


def test_a_broken_stage_entry_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with lineage_server() as collected:
        monkeypatch.setenv("OPENLINEAGE_URL", collected.url)
        with emitting_lineage(make_config(tmp_path), STAGES, "run.json") as observer:
            assert observer is not None
            observer("no such stage", {"status": "running"})
    assert "no event: KeyError" in caplog.text


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
def test_datasets_are_named_as_openlineage_does(
    uri: str, namespace: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = "<property><name>fs.defaultFS</name><value>hdfs://cluster</value></property>"
    (tmp_path / "core-site.xml").write_text(f"<configuration>{setting}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert dataset(uri) == {"namespace": namespace, "name": name}
