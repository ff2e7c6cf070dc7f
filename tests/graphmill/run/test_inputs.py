"""Sizes of inputs."""

from pathlib import Path

import pytest

from graphmill.run.inputs import SMALL_BYTES, are_small


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, True),
        ({"a": 1, "deep/er/b": SMALL_BYTES - 1}, True),
        ({"a": 1, "deep/er/b": SMALL_BYTES}, False),
        ({f"{number % 7}/{number}": 0 for number in range(1001)}, False),
    ],
)
def test_few_files_of_few_bytes_are_small(files: dict[str, int], expected: bool, tmp_path: Path) -> None:
    for name, num_bytes in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.truncate(num_bytes)
    twice_and_missing = [str(tmp_path), str(tmp_path), str(tmp_path / "missing")]
    assert are_small(twice_and_missing) is expected
