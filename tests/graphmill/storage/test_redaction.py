"""Secrets in URIs stay out of run.json, the log and error messages."""

import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill import storage
from graphmill.errors import PathError, StorageError
from graphmill.storage.redaction import redacted
from tests.forked import Forks
from tests.graphmill.smallest import write_conf

SECRET = "wJalrXUtnFEMI"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (f'"a": "s3://b/x?secret_key={SECRET}&region=eu"', '"a": "s3://b/x?secret_key=***&region=eu"'),
        ("s3://AKIA:1234/rXU@bucket/x", "s3://***@bucket/x"),
        (f"https://me:a/b{SECRET}@host/x and a@b", "https://***@host/x and a@b"),
        (f"az://c/x?sv=1&se=2&sig={SECRET}%2F%3D&sp=r", "az://c/x?sv=1&se=2&sig=***&sp=r"),
        (f"credential={SECRET} is wrong", "credential=*** is wrong"),
        (
            f"https://b/x?X-Amz-Credential=a/b&X-Amz-Signature={SECRET}&X-Amz-Security-Token=I/Q==&X-Amz-Date=1",
            "https://b/x?X-Amz-Credential=***&X-Amz-Signature=***&X-Amz-Security-Token=***&X-Amz-Date=1",
        ),
        (f"https://b/x?X-Goog-Signature={SECRET}&Expires=9", "https://b/x?X-Goog-Signature=***&Expires=9"),
        (f"AccountName=n;AccountKey={SECRET}/+==", "AccountName=n;AccountKey=***"),
        ("/data?design=1&assigned=2&monkeys", "/data?design=1&assigned=2&monkeys"),
        ("hdfs://namenode:8020/mail/me@example", "hdfs://namenode:8020/mail/me@example"),
        ("tcp://a:1/x and tcp://b:2/y@z", "tcp://a:1/x and tcp://b:2/y@z"),
        ("hdfs://nameservice:8020/a@b:c", "hdfs://nameservice:8020/a@b:c"),
        ("hdfs://user:pa/ss@w:rd@host/x", "hdfs://***@host/x"),
        (f"https://{SECRET}@host/x/y@z", "https://***@host/x/y@z"),
        (f"clone https://me:p@{SECRET}/w@host", "clone https://***@host"),
        ("abfss://container@account/x and hdfs://me@h/x", "abfss://container@account/x and hdfs://me@h/x"),
        ("tcp://[::1]:8786/a@b", "tcp://[::1]:8786/a@b"),
        ("ssh://me@h1:22,you@h2", "ssh://me@h1:22,you@h2"),
        ("tcp://10.0.0.1:8786", "tcp://10.0.0.1:8786"),
        ("mail me@example.org: it costs 1:2", "mail me@example.org: it costs 1:2"),
    ],
)
def test_secrets_are_redacted(text: str, clean: str) -> None:
    assert redacted(text) == clean


@pytest.mark.parametrize("after", ['": denied', "\nand more", "\\x", "é"])
def test_redacted_json_is_valid_json(after: str) -> None:
    text = json.loads(redacted(json.dumps(f'cannot open "s3://b/x?secret_key={SECRET}{after}')))
    assert text.startswith('cannot open "s3://b/x?secret_key=***')
    assert SECRET not in text


_SECRETS = st.text("abcXYZ019+/=_-.%~", min_size=4).map(lambda text: f"zQ{text}")  # found again for certain
_NAMES = st.sampled_from(
    ["secret_key", "sig", "Signature", "credential", "X-Amz-Signature", "X-Amz-Credential", "password"]
) | st.sampled_from(["X-Amz-Security-Token", "AWSAccessKeyId", "X-Goog-Credential", "fs.s3a.secret.key"])


@given(_SECRETS, _NAMES, st.sampled_from(["&region=eu", "", '"', "' is denied", "\nand", ", other"]))
def test_any_secret_in_a_query_is_redacted(secret: str, name: str, after: str) -> None:
    for before in ("s3://b/x?", "https://host:443/x?y=1&"):
        clean = redacted(f"{before}{name}={secret}{after}")
        assert clean == f"{before}{name}=***{after}"


@given(_SECRETS, st.sampled_from(["s3", "s3a", "gs", "abfss", "https", "mongodb+srv"]), st.booleans())
def test_any_secret_before_a_host_is_redacted(secret: str, scheme: str, in_json: bool) -> None:
    text = f"{scheme}://AKIA:{secret}@bucket/x: denied"
    assert redacted(json.dumps(text) if in_json else text).strip('"') == f"{scheme}://***@bucket/x: denied"


@given(st.text("ab :/@\"'\\é", min_size=1).map(lambda text: f"me:zQ{text}1"), st.booleans())
def test_a_secret_of_any_characters_is_redacted_once_its_uri_is_known(info: str, in_json: bool) -> None:
    """Where a URI ends, its text alone does not say; the first function that takes it as a URI does."""
    whole = f"https://{info}@host/x"
    assert not storage.is_local(whole)
    text = f"cannot open {whole}: denied"
    clean = redacted(json.dumps(text) if in_json else text)
    assert "zQ" not in clean
    assert clean.strip('"') == "cannot open https://***@host/x: denied"
    with pytest.raises((PathError, StorageError)) as caught:
        storage.exists(whole)
    assert "zQ" not in redacted(str(caught.value))


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("hdfs://user:pa/ss@w:rd@host/", r"hdfs://\*\*\*@host/: .* found a password before the host"),
        ("hdfs://user:pass@host/x", "HDFS takes none"),
        ("hdfs://user:pa ss@host/x", "HDFS takes none"),
        ("s3://key:pa/ss@bucket/x", "written as %2F"),
        ("hdfs://host:99999/x", r"HOST:PORT/..., with a port up to 65535"),
        ("hdfs://host:x/y", "with a port up to 65535"),
        ("hdfs://[x/y", "HOST:PORT"),
    ],
)
def test_a_uri_that_cannot_be_one(uri: str, message: str) -> None:
    with pytest.raises(PathError, match=message) as caught:
        storage.exists(uri)
    assert not re.search("pa/ss|pass@|pa ss|w:rd", str(caught.value))


@pytest.mark.slow
def test_redacting_takes_time_by_length_alone() -> None:
    for text in ("a-" * 500_000, "s3://" * 200_000, "s3://:" * 200_000, "s3://a:" + "b" * 1_000_000):
        assert redacted(text) == text


@given(st.text())
def test_redacting_twice_changes_nothing(text: str) -> None:
    assert redacted(redacted(text)) == redacted(text)


class Denying(BaseHTTPRequestHandler):
    """A store to which nobody has access: its answer comes at once, where none is waited for for seconds."""

    def do_HEAD(self) -> None:
        self.send_error(403)

    do_GET = do_HEAD


@pytest.mark.slow
def test_a_run_logs_and_records_no_secret(tmp_path: Path, forked: Forks) -> None:
    write_conf(tmp_path, "missing.csv")
    words = ["--master", "local[1]", "etl.py", "--conf", "c.yaml"]
    with ThreadingHTTPServer(("127.0.0.1", 0), Denying) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        place, store = f"--set=input=s3://AKIA:{SECRET}@bucket/x", f"http://127.0.0.1:{server.server_port}"
        of_store = {"AWS_ENDPOINT_URL": store, "AWS_REGION": "x"}
        done = forked("dask-submit", *words, place, code=1, cwd=tmp_path, **of_store)
        server.shutdown()
    assert "ACCESS_DENIED" in done.stderr
    text = (tmp_path / "o" / "run.json").read_text()
    record = json.loads(text)
    assert (record["status"], record["config"]["input"]) == ("failed", "s3://***@bucket/x")
    assert SECRET not in text + done.stdout + done.stderr
