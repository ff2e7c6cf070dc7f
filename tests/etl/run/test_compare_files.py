"""Files count as the same by size and time of change, or by size and content: `etl.compare_files`."""

import os
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from etl import job
from etl.run import sources
from etl.tables.files import find_all
from tests.etl.graphs import config_of

TABLE = {"lhs": 0, "rhs": 1, "relation": "to", "header": False}


def described(folder: Path, path: Path, compare_files: str) -> tuple[Any, list[str]]:
    """Say whether the stage runs again, and whether a later run reads a file again."""
    config = config_of(folder / "out", [TABLE | {"path": path}], compare_files=compare_files)
    files = sources.source_files(sources.numbered(find_all(config)))
    return job.fingerprint(config)["inputs"], [each.digest for each in files]


@given(st.binary(min_size=1, max_size=99), st.binary(min_size=1, max_size=99), st.booleans(), st.booleans())
@settings(max_examples=40)
def test_a_file_is_the_same_by_time_or_by_content(first, second, is_later, is_named):
    """In a folder; or by its name, which may begin with an underscore then."""
    with tempfile.TemporaryDirectory() as name:
        folder, path = Path(name), Path(name, "t", "_a.csv" if is_named else "a.csv")
        path.parent.mkdir()
        found = []
        for number, content in enumerate((first, second)):
            path.write_bytes(content)
            os.utime(path, ns=(10**18, 10**18 + number * is_later))
            place = path if is_named else path.parent
            found.append({kind: described(folder, place, kind) for kind in ("time", "content")})
        before, after = found
        assert (before["content"] == after["content"]) == (first == second)
        assert (before["time"] == after["time"]) == (len(first) == len(second) and not is_later)
        (inputs,) = before["time"][0]
        assert Path(inputs["uri"]).name == path.name
