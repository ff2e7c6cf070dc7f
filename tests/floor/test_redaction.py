"""No secret of a URI reaches run.json, the log, or an error's message."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.redaction import redacted
from tests.floor.test_submit import GRAPH, submit

SECRET = "wJalrXUtnFEMI"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (f"s3://AKIA:{SECRET}@bucket/x", "s3://***@bucket/x"),
        (f'"a": "s3://b/x?secret_key={SECRET}&region=eu"', '"a": "s3://b/x?secret_key=***&region=eu"'),
        ("hdfs://nameservice:8020/a@b:c", "hdfs://nameservice:8020/a@b:c"),
        ("ssh://me@h1:22,you@h2", "ssh://me@h1:22,you@h2"),
        ("tcp://10.0.0.1:8786", "tcp://10.0.0.1:8786"),
        ("mail me@example.org: it costs 1:2", "mail me@example.org: it costs 1:2"),
    ],
)
def test_what_is_taken_out(text: str, clean: str) -> None:
    assert redacted(text) == clean


@pytest.mark.parametrize("after", ['": denied', "\nand more", "\\x", "é"])
def test_json_stays_json(after: str) -> None:
    text = json.loads(redacted(json.dumps(f'cannot open "s3://b/x?secret_key={SECRET}{after}')))
    assert text.startswith('cannot open "s3://b/x?secret_key=***')
    assert SECRET not in text


@given(st.text())
def test_once_is_enough(text: str) -> None:
    assert redacted(redacted(text)) == redacted(text)


def test_a_run_tells_no_secret(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        GRAPH + "etl: {tables: [{path: missing.csv, lhs: 0, rhs: 1, relation: r}]}}"
    )
    place = f"--set=input=s3://AKIA:{SECRET}@bucket/x"
    done = submit("--master", "local[1]", "etl.py", "--conf", "c.yaml", place, cwd=tmp_path)
    assert done.returncode != 0
    text = (tmp_path / "o" / "run.json").read_text()
    assert json.loads(text)["config"]["input"] == "s3://***@bucket/x"
    assert SECRET not in text + done.stdout + done.stderr
