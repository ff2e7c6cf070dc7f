"""Words of a command line in any locale."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.cli.exit_codes import decoded
from graphmill.errors import BadInputError
from tests import REPOSITORY


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_words_are_utf_8(word: str) -> None:
    as_in_the_c_locale = word.encode().decode("ascii", "surrogateescape")
    assert decoded([word, as_in_the_c_locale]) == [word, word]


def test_other_bytes_are_refused() -> None:
    with pytest.raises(BadInputError, match=r"expected UTF-8, found b'n\\xff'"):
        decoded(["x", os.fsdecode(b"n\xff")])


@pytest.mark.slow
def test_a_command_in_the_c_locale(tmp_path: Path) -> None:
    (tmp_path / "n").mkdir()
    rows = {"id": ["né", "nü"], "vector": [[1.0, 0.0], [0.9, 0.1]]}
    pq.write_table(pa.table(rows), tmp_path / "n/part-00000.parquet")
    words = ["neighbors", "--embeddings", str(tmp_path), "--id", "né"]
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONPATH": str(REPOSITORY)}

    def run(*words: str) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "graphmill", *words]
        return subprocess.run(command, env=environment, capture_output=True, timeout=120, check=False)

    assert "nü" in run(*words).stdout.decode()
    refused = run("check", "--conf", "cé.yaml")
    assert refused.returncode == 2
    assert b"set LC_ALL=C.UTF-8 or PYTHONUTF8=1" in refused.stderr
