"""Origins of edges: written, read back, and asked for the rows that a run has added."""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill import storage
from graphmill.errors import FormatError
from graphmill.formats import edge_buckets
from graphmill.formats.edge_buckets import Edges, origins
from graphmill.vocab import Bucket

BUCKET = Bucket(0, 0)
ROWS = st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=40)  # file, whether it is an edge


def write(folder: Path, rows: list[tuple[int, bool]], added: list[int] | None) -> list[int]:
    """Write a bucket of these rows, by file; lhs is the position among all rows. Return the files."""
    rows = sorted(rows, key=lambda row: row[0])
    files = np.array([file for file, _ in rows], np.int32)
    kept = np.array([is_edge for _, is_edge in rows], bool)
    at = np.arange(len(rows), dtype=np.int32)
    origin = np.unique(files)
    bounds = np.append(np.searchsorted(files, origin), len(files))
    num_kept = np.concatenate([[0], np.cumsum(kept)])
    starts = num_kept[bounds]
    of_bucket = origins.BucketOrigins(origin, starts, bounds - starts)

    def edges(mask: np.ndarray) -> Edges:
        return Edges(at[mask], at[mask] * 0, at[mask] * 2, at[mask].astype(np.float32))

    with edge_buckets.new_bucket(
        str(folder), BUCKET, int(kept.sum()), weighted=True, num_left_out=int((~kept).sum())
    ) as writer:
        writer.append(edges(kept))
        writer.append_left_out(edges(~kept), np.flatnonzero(~kept))
        writer.origins = of_bucket
    sources = [origins.SourceFile(uri=f"file{n}", size_bytes=n, digest=f"{n}") for n in range(5)]
    (folder / origins.ORIGINS).unlink(missing_ok=True)
    written = origins.Origins(settings={"seed": 1}, entities="e", files=sources, added=added)
    origins.write_origins(str(folder), written, {})
    found: list[int] = files[kept].tolist()
    return found


@given(rows=ROWS, added=st.none() | st.lists(st.integers(0, 4), unique=True))
def test_added_rows_are_those_of_the_added_files(tmp_path, rows, added):
    files = write(tmp_path, rows, added)
    found = origins.added_rows(str(tmp_path), BUCKET)
    assert found.dtype == np.int64
    inside = [row for first, last in found.tolist() for row in range(first, last)]
    assert inside == [row for row, file in enumerate(files) if file in (added or [])]
    assert (found[1:, 0] > found[:-1, 1]).all()  # joined
    assert origins.has_added(str(tmp_path)) == (added is not None)


@pytest.mark.slow
@given(rows=ROWS, cut=st.integers(0, 40))
def test_all_rows_in_their_order(tmp_path: Path, rows: list[tuple[int, bool]], cut: int) -> None:
    write(tmp_path, rows, None)
    cut = min(cut, len(rows))
    with origins.open_all_rows(str(tmp_path), BUCKET, ("lhs", "rhs", "weight")) as found:
        assert found.starts[-1] == len(rows)
        for column, factor in (("lhs", 1), ("rhs", 2), ("weight", 1)):
            read = [found.read(*part, column, np.float32) for part in ((0, cut), (cut, len(rows)))]
            assert np.concatenate(read).tolist() == [factor * at for at in range(len(rows))]


def test_buckets_without_origins_have_no_added_rows(tmp_path: Path) -> None:
    ones = np.ones(3, np.int32)
    edge_buckets.write_bucket(str(tmp_path), BUCKET, Edges(ones, ones, ones))
    assert origins.read_origins(str(tmp_path)) is None
    assert not origins.has_added(str(tmp_path))
    assert origins.added_rows(str(tmp_path), BUCKET).shape == (0, 2)
    write(tmp_path, [(0, True), (0, False), (3, True)], [0])
    found = edge_buckets.read_bucket(str(tmp_path), BUCKET).lhs.tolist()
    assert found == [0, 2], "other readers see the edges"
    assert edge_buckets.count_edges(str(tmp_path), BUCKET) == 2
    edge_buckets.write_bucket(str(tmp_path), BUCKET, Edges(ones, ones, ones))
    with pytest.raises(FormatError, match="expected a dataset 'origin'"):
        origins.added_rows(str(tmp_path), BUCKET)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("origin", [3, 0], "ascending numbers of files"),
        ("origin_starts", [0, 3, 2], "starts that never fall"),
        ("origin_starts", [0, 1, 9], "starts that never fall, from 0 to 2"),
        ("left_out_starts", [1, 1, 1], "starts that never fall, from 0 to 1"),
    ],
)
def test_damaged_origins_are_refused(tmp_path: Path, name: str, value: list[int], message: str) -> None:
    write(tmp_path, [(0, True), (0, False), (3, True)], [3])
    with h5py.File(tmp_path / "edges_0_0.h5", "r+") as hdf5:
        hdf5[name][...] = value
    with pytest.raises(FormatError, match=message):
        origins.added_rows(str(tmp_path), BUCKET)


WHOLE = {"format_version": 1, "settings": {}, "entities": "", "files": []}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"format_version": 1}, "expected the raw files of a run; settings: Field required"),
        (WHOLE | {"format_version": 2}, "this reader knows 1"),
        (WHOLE | {"added": [0]}, "of the 0 files"),
        (WHOLE | {"added": [-1]}, "of the 0 files"),
    ],
)
def test_a_damaged_list_of_files_is_refused(tmp_path: Path, content: dict[str, Any], message: str) -> None:
    storage.write_text(str(tmp_path / origins.ORIGINS), json.dumps(content))
    with pytest.raises(FormatError, match=message):
        origins.read_origins(str(tmp_path))
