"""Published tables: a wrong byte is refused by every reader; parquet-java reads every row of every table."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphmill
from graphmill import storage
from graphmill.ask import earlier
from graphmill.ask import given as given_files
from graphmill.ask.drift import moved_of_part
from graphmill.ask.entities import read_tables
from graphmill.ask.neighbors import neighbors
from graphmill.ask.run import TrainedRun
from graphmill.checkpoints.pbg.versions import manifest_of
from graphmill.errors import FormatError
from graphmill.formats import remapped
from graphmill.formats.parquet.vectors import Column
from graphmill.run.work import complete
from graphmill.storage.checksums import of_file
from remap.job import read_ids
from remap.tables import TableOptions, open_table, values_type
from tests.graphmill.ask.predict.world import write_world
from tests.hadoop import jars, parquet_java
from train.tables.vector_files import VectorFiles

NUM_PARTS, ROWS, DIMENSION = 2, 40, 4


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "embeddings"
    rng, checksums = np.random.default_rng(0), storage.Checksums()
    for part in range(NUM_PARTS):
        place = str(folder), "node", part, DIMENSION
        with remapped.new_part(*place, checksums=checksums) as writer:
            ids = pa.array([f"n{part * ROWS + row}" for row in range(ROWS)])
            writer.append(ids, rng.standard_normal((ROWS, DIMENSION), np.float32))
    complete(str(folder), checksums)
    storage.write_marker(str(folder), {})
    return folder


def _moved(folder: str) -> None:
    for part in range(NUM_PARTS):
        moved_of_part((folder, folder), "node", part, [part], np.zeros(ROWS, np.int64), 1)


READERS: dict[str, Callable[[str], Any]] = {
    "neighbors": lambda folder: neighbors(folder, "n7", 5),
    "library, table": lambda folder: graphmill.open(storage.parent(folder)).embeddings("node"),
    "library, vectors": lambda folder: graphmill.open(storage.parent(folder)).vectors("node"),
    "first vectors": lambda folder: list(VectorFiles(folder).batches()),
    "first vectors of a type": lambda folder: list(VectorFiles(f"{folder}/node").batches()),
    "drift": _moved,
    "selected ids": lambda folder: [read_ids(remapped.part_uri(folder, "node", n)) for n in range(NUM_PARTS)],
    "asked ids": lambda folder: list(given_files.iter_ids(f"{folder}/node")),
}


@pytest.mark.parametrize("reader", READERS)
@settings(max_examples=5)
@given(data=st.data())
def test_damage_names_the_file(embeddings: Path, tmp_path: Path, reader: str, data: st.DataObject) -> None:
    folder = tmp_path / "embeddings"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(embeddings, folder)
    READERS[reader](str(folder))
    path = Path(remapped.part_uri(str(folder), "node", data.draw(st.integers(0, NUM_PARTS - 1))))
    content = path.read_bytes()
    place = data.draw(st.integers(0, len(content) - 1))
    wrong = bytes([content[place] ^ data.draw(st.integers(1, 255))])
    in_place = data.draw(st.sampled_from([wrong, content[place : place + 1] + bytes(16)]))
    path.write_bytes(content[:place] + in_place + content[place + 1 :])
    with pytest.raises(FormatError, match=path.name):
        READERS[reader](str(folder))


def test_other_programs_see_tables_alone_and_need_no_manifest(embeddings: Path, tmp_path: Path) -> None:
    """Names that begin with _ are none to them."""
    pyarrow_dataset = pytest.importorskip("pyarrow.dataset")
    assert pyarrow_dataset.dataset(embeddings).count_rows() == NUM_PARTS * ROWS
    folder = tmp_path / "embeddings"
    shutil.copytree(embeddings, folder)
    (folder / storage.PUBLISHED).unlink()
    for read in READERS.values():
        read(str(folder))


def test_pages_have_checksums_for_other_readers(embeddings: Path, tmp_path: Path) -> None:
    path = tmp_path / "part.parquet"
    shutil.copy(embeddings / "node/part-00000.parquet", path)
    read = partial(pq.read_table, path, page_checksum_verification=True)
    assert len(read()) == ROWS
    content = bytearray(path.read_bytes())
    chunk = pq.read_metadata(path).row_group(0).column(2)
    content[chunk.data_page_offset + chunk.total_compressed_size - 3] ^= 1
    path.write_bytes(content)
    with pytest.raises(OSError, match="CRC"):
        read()


def test_a_file_that_is_not_ours_is_no_part_of_a_folder(tmp_path: Path) -> None:
    checksums: storage.Checksums = {}
    storage.write_text(str(tmp_path / "a"), "", checksums)
    complete(str(tmp_path), checksums)
    complete(str(tmp_path), checksums)  # after a kill
    assert storage.read_checksums(storage.published_manifest(str(tmp_path)).uri).keys() == {"a"}
    assert earlier.parts_of(str(tmp_path), "node") == []


def test_rows_of_a_damaged_checkpoint_are_not_gathered(tmp_path: Path) -> None:
    """Features, fold-in and queries read some rows alone."""
    world = write_world(tmp_path / "run")
    path = world.config.checkpoint_path
    files = [each.uri for each in storage.list_dir(path) if each.uri.endswith((".v1.h5", "config.json"))]
    manifest_uri = manifest_of(path, 1).uri
    storage.write_checksums(manifest_uri, {uri: of_file(uri) for uri in files})
    trained = TrainedRun.with_ids(world.config, None)
    table = read_tables(trained, ["user"])["user"]
    table.gather(np.arange(2))
    embeddings = Path(table.parts[0].embeddings_uri)
    with h5py.File(embeddings, "r+") as file:
        file["embeddings"][1, 0] += 1
    with pytest.raises(FormatError, match=embeddings.name):
        table.gather(np.arange(2))


NUM_ROWS, GROUP_ROWS, LENGTH = 1200, 400, 16
GROUPS = [slice(start, start + GROUP_ROWS) for start in range(0, NUM_ROWS, GROUP_ROWS)]
VECTORS = (np.arange(NUM_ROWS)[:, None] / 4 + np.arange(LENGTH)).astype(np.float32)
# Ids, vectors and numbers; and what parquet-java reads of them and of types.
COLUMNS: dict[str, Column] = {
    "i": pa.array([f"id {row} é" for row in range(NUM_ROWS)]),
    "v": VECTORS,
    "n": VECTORS[:, 0],
}
TEXTS = {
    "i": COLUMNS["i"].tolist(),
    "v": [",".join(map(str, vector)) for vector in VECTORS.tolist()],
    "n": [str(vector[0]) for vector in VECTORS.tolist()],
    "t": ["user"] * NUM_ROWS,
}


def write_part(folder: Path, compression: remapped.Compression) -> Path:
    root = str(folder / compression)
    with remapped.new_part(root, "user", 0, LENGTH, compression) as part:
        for rows in GROUPS:
            part.append(COLUMNS["i"][rows], COLUMNS["v"][rows])
    return Path(remapped.part_uri(root, "user", 0))


def write_table(path: Path, names: str, options: TableOptions) -> Path:
    """A table of these columns."""
    types = {"i": pa.string()} | {each: values_type("float32", COLUMNS[each].shape, options) for each in "vn"}
    schema = pa.schema([(f"{name}{place}", types[name]) for place, name in enumerate(names)])
    with open_table(str(path), schema, options) as table:
        for rows in GROUPS:
            table.append([COLUMNS[name][rows] for name in names])
    return path


@pytest.mark.slow
def test_parquet_java_reads_every_row_once(tmp_path: Path) -> None:
    if reason := jars.why_not():
        pytest.skip(f"no parquet-java: {reason}")
    wanted = {write_part(tmp_path, "none"): "itv", write_part(tmp_path, "zstd"): "itv"}
    for number, (names, options) in enumerate(
        [
            ("vi", TableOptions()),  # GraphStorm's embeddings
            ("nii", TableOptions()),  # and edge predictions
            ("iiv", TableOptions(compression="zstd", fixed_size_list=True)),
            ("ivi", TableOptions(compression="lz4")),
            ("vi", TableOptions(value_compression="zstd")),
        ]
    ):
        wanted[write_table(tmp_path / f"{number}.parquet", names, options)] = names
    found = parquet_java.read(list(wanted), num_shares=5)
    assert found.keys() == wanted.keys()
    for path, names in wanted.items():
        assert found[path] == list(map(list, zip(*(TEXTS[name] for name in names), strict=True))), path
