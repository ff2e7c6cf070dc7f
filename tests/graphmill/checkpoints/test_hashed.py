"""Tables of RecIS with hashed ids: raw ids by a map, there and back, and what a map can lack."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphmill.checkpoints import id_join
from graphmill.checkpoints.id_maps import IdMap, IdMaps, Misses
from graphmill.cli import main
from graphmill.convert import convert
from graphmill.errors import ConfigError, FormatError
from graphmill.formats import entity_counts, entity_index
from tests.commands import code_of
from tests.etl.graphs import hash_of
from tests.forked import Forks
from tests.graphmill.checkpoints.recis_rules import RecisReader, Tables, rows_of, save_shards, table_of

INT64 = st.integers(-(2**63), 2**63 - 1)


def _tables(**ids_of: Any) -> Tables:
    """Tables as RecIS saves them with row-wise Adagrad."""
    return {
        name: (ids, {"embedding": rows_of(ids, 3), "sparse_row_wise_adagrad_state_sum": rows_of(ids, 1)})
        for name, ids in ((name, np.array(ids, np.int64)) for name, ids in ids_of.items())
    }


def _write_map(path: Path, raw: list[str], ids: Any, **columns: Any) -> str:
    table = pa.table({**columns, "name": raw, "hash": pa.array(ids, pa.int64())})
    pq.write_table(table, path, row_group_size=1 << 16)
    return str(path)


@pytest.mark.slow
@settings(max_examples=10)
@given(
    ids=st.lists(INT64, unique=True, min_size=1, max_size=40),
    partitions=st.integers(1, 4),
    shards=st.integers(1, 4),
    piece_bytes=st.sampled_from([500, 3000, 256 << 20]),
    most_files=st.sampled_from([2, 256]),
    seed=st.integers(0, 3),
)
def test_a_map_gives_rows_to_raw_ids_and_back(
    tmp_path_factory, ids, partitions, shards, piece_bytes, most_files, seed
):
    """RecIS to PBG and back: partitions and indices are those of etl, rows and sums are the same bits."""
    root = tmp_path_factory.mktemp("map")
    raw = [f"id-{number}-é" for number in range(len(ids))]
    save_shards(root / "recis", _tables(user=ids, item=ids), 3)
    maps = {"user": IdMap(_write_map(root / "map.parquet", raw, ids)), "item": IdMap("int64")}
    there, back_again, entities = (str(root / each) for each in ("pbg/checkpoint", "back", "pbg/entities"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(id_join, "PIECE_BYTES", piece_bytes)
        patch.setattr(id_join, "MOST_FILES", max(most_files, partitions))
        id_maps = IdMaps(maps, partitions, seed)
        done = convert(str(root / "recis"), str(root / "pbg"), "pbg", id_maps=id_maps)
        options = {"shard_num": shards, "id_maps": id_maps, "entity_path": entities}
        back = convert(there, back_again, "recis", **options)
    assert done.not_kept == back.not_kept == []
    assert done.target.config["entity_path"] == entities
    assert done.target.num_partitions == {"item": partitions, "user": partitions}
    names = {"user": dict(zip(raw, ids, strict=True)), "item": {str(each): each for each in ids}}
    manifest = entity_index.read_manifest(entities)
    assert (manifest.hash_name, manifest.seed) == ("murmurhash64a", seed)
    for name, id_of in names.items():
        num_found = 0
        for partition in range(partitions):
            found = entity_index.read_part(entities, name, partition).to_pylist()
            assert found == sorted(found, key=lambda each: (hash_of(each, seed), each.encode()))
            assert all((hash_of(each, seed) >> 32) * partitions >> 32 == partition for each in found)
            assert entity_counts.read_count(entities, name, partition) == len(found)
            own = np.array([id_of[each] for each in found], np.int64)
            np.testing.assert_array_equal(done.target.read_embeddings(name, partition), rows_of(own, 3))
            state = done.target.read_optimizer_state(name, partition)
            np.testing.assert_array_equal(state["state"][0]["sum"], rows_of(own, 1)[:, 0])
            num_found += len(found)
        assert num_found == len(ids)
    before, after = RecisReader(root / "recis"), RecisReader(root / "back")
    for name in names:
        for slot in ("embedding", "sparse_row_wise_adagrad_state_sum"):
            old, new = before.table(name, slot), after.table(name, slot)
            assert new.keys() == old.keys()
            assert all(torch.equal(new[each], old[each]) for each in ids)
        owned = [after.owned(name, rank, shards) for rank in range(shards)]
        assert set().union(*owned) == set(ids)


def test_words_are_no_integers(tmp_path: Path) -> None:
    """Only int64 in decimal digits, in their one spelling."""
    good = ["0", "-1", "9223372036854775807", "-9223372036854775808"]
    bad = ["", "a", "007", "+1", "-0", "1.0", " 1", "9223372036854775808", "1e3"]
    misses = Misses()
    raw = pa.array([*good, *bad])
    found = list(id_join.ids_of([raw], len(raw), IdMap("int64"), str(tmp_path), misses, "here"))
    ids, rows = (np.concatenate(each).tolist() for each in zip(*found, strict=True))
    assert dict(zip(rows, ids, strict=True)) == {row: int(text) for row, text in enumerate(good)}
    assert misses.unmapped.num == len(bad)


def test_tables_without_a_map_are_left_out(tmp_path: Path) -> None:
    ids = [5, -7, 2**62]
    save_shards(tmp_path / "recis", _tables(user=ids, query=ids), 2, sparse_adam_step=torch.tensor([3]))
    maps = IdMaps({"user": IdMap("int64")})
    done = convert(str(tmp_path / "recis"), str(tmp_path / "pbg"), "pbg", id_maps=maps)
    assert done.not_kept == [
        "table 'query': there is no --id-map of it",
        "sparse_adam_step, of which nothing is known here",
    ]
    assert done.target.counts == {"user": [3]}
    buyers = IdMaps({"buyer": IdMap("int64")})
    with pytest.raises(ConfigError, match=r"--id-map buyer=\.\.\.: .* has no 'buyer', only query, user"):
        convert(str(tmp_path / "recis"), str(tmp_path / "x"), "pbg", id_maps=buyers)


@pytest.mark.parametrize(
    ("raw", "ids", "message"),
    [
        (["a", "b"], [1, 2], r"1 \(3\) ids of 'user' that its map lacks"),
        (["a", "b", "c", "d"], [1, 2, 3, 3], r"2 \('c', 'd'\) ids of 'user' that share one int64 id"),
    ],
)
def test_ids_that_cannot_be_translated(tmp_path: Path, raw: list[str], ids: list[int], message: str) -> None:
    save_shards(tmp_path / "recis", _tables(user=[1, 2, 3]))
    uri = _write_map(tmp_path / "map.parquet", [*raw, "seen nowhere"], [*ids, 9])

    def run(leave_out: bool) -> Any:
        maps = IdMaps({"user": IdMap(uri)}, leave_out=leave_out)
        return convert(str(tmp_path / "recis"), str(tmp_path / "pbg"), "pbg", id_maps=maps)

    with pytest.raises(FormatError, match=message + r": complete the map, or leave .* with --leave-out"):
        run(leave_out=False)
    assert not (tmp_path / "pbg").exists()
    done = run(leave_out=True)
    assert done.target.counts == {"user": [2]}
    rows = np.sort(done.target.read_embeddings("user", 0), axis=0)
    np.testing.assert_array_equal(rows, rows_of(np.array([1, 2]), 3))
    kept = entity_index.read_part(str(tmp_path / "pbg/entities"), "user", 0).to_pylist()
    assert sorted(kept) == ["a", "b"]
    assert any("raw ids of the map of 'user', which have no row" in line for line in done.not_kept)
    assert len(done.not_kept) == 2


def test_raw_ids_that_cannot_become_int64(tmp_path: Path) -> None:
    save_shards(tmp_path / "recis", _tables(user=[1, 2, 3]))
    full = IdMap(_write_map(tmp_path / "full.parquet", ["a", "b", "c"], [1, 2, 3]))
    pbg, entities = str(tmp_path / "pbg/checkpoint"), str(tmp_path / "pbg/entities")
    two = IdMaps({"user": full}, num_partitions=2)
    convert(str(tmp_path / "recis"), str(tmp_path / "pbg"), "pbg", id_maps=two)
    for name, raw, ids, kept, message in (
        ("fewer", ["a", "b"], [1, 2], {1, 2}, r"1 \('c'\) ids of 'user' that its map lacks"),
        ("shared", ["a", "b", "c"], [1, 7, 7], {1}, r"2 \(7, 7\) ids of 'user' that share one int64 id"),
        ("twice", ["a", "a", "b", "c"], [1, 4, 2, 3], None, r"'a' has the ids 1 and 4 in the map"),
        ("int64", [], [], None, r"3 \('.'.*\) ids of 'user' that its map lacks"),
    ):
        id_map = IdMap(_write_map(tmp_path / name, raw, ids) if raw else name)
        target = tmp_path / f"of {name}"
        with pytest.raises(FormatError, match=message):
            convert(pbg, str(target), "recis", id_maps=IdMaps({"user": id_map}), entity_path=entities)
        if kept:
            fewer = IdMaps({"user": id_map}, leave_out=True)
            convert(pbg, str(target), "recis", id_maps=fewer, entity_path=entities)
            assert RecisReader(target).table("user").keys() == kept
    with pytest.raises(ConfigError, match="--entity-path: missing"):
        convert(pbg, str(tmp_path / "no"), "recis", id_maps=two)


def test_a_raw_id_with_two_ids_and_an_id_in_two_rows_are_refused(tmp_path: Path) -> None:
    save_shards(tmp_path / "recis", _tables(user=[1, 2]))
    twice = IdMaps({"user": IdMap(_write_map(tmp_path / "map.parquet", ["a", "a", "a"], [1, 2, 2]))})
    with pytest.raises(FormatError, match="raw id 'a' has two ids in the map"):
        convert(str(tmp_path / "recis"), str(tmp_path / "x"), "pbg", id_maps=twice)
    save_shards(tmp_path / "again", table_of([4, 7, 4], np.zeros((3, 2), np.float32)))
    with pytest.raises(FormatError, match="id 4 stands in two rows"):
        convert(str(tmp_path / "again"), str(tmp_path / "x"), "pbg", id_maps=IdMaps({"t": IdMap("int64")}))


def test_columns_of_a_map_are_found_by_type_or_named(tmp_path: Path) -> None:
    plain = IdMap(_write_map(tmp_path / "plain.parquet", ["a", "b"], [1, -2], score=[0.5, 1.5]))
    assert [(raw.to_pylist(), ids.tolist()) for raw, ids in plain.batches()] == [(["a", "b"], [1, -2])]
    uri = _write_map(tmp_path / "two.parquet", ["a"], [1], other=["x"], number=[5])
    with pytest.raises(FormatError, match=r"expected one column of strings, found other, name: name the col"):
        list(IdMap(uri).batches())
    assert [ids.tolist() for _, ids in IdMap(uri, ("other", "number")).batches()] == [[5]]
    with pytest.raises(FormatError, match=r"expected a column 'other' of integers, found number, hash"):
        list(IdMap(uri, ("name", "other")).batches())
    pq.write_table(pa.table([["a"], ["b"], [1]], names=["name", "name", "hash"]), uri)
    with pytest.raises(FormatError, match=r"expected a column 'name' of strings, found name, name"):
        list(IdMap(uri, ("name", "hash")).batches())
    (tmp_path / "folder" / "part").mkdir(parents=True)
    raw_ids = pa.array(["r0"]).dictionary_encode(), pa.array(["r1"], pa.string_view())
    for number, ids in enumerate((pa.array([2**64 - 3], pa.uint64()), pa.array([7], pa.int32()))):
        table = pa.table({"raw": raw_ids[number], "id": ids})
        pq.write_table(table, tmp_path / "folder" / "part" / f"{number}.parquet")
    found = list(IdMap(str(tmp_path / "folder")).batches())
    assert [(raw.to_pylist(), ids.tolist()) for raw, ids in found] == [(["r0"], [-3]), (["r1"], [7])]


def test_options_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The way of docs/how_to/coming_from_recis.md, whose commands tests/whole runs."""
    save_shards(tmp_path / "run" / "ckpt_20", _tables(user=[17, -5]), 2)
    (tmp_path / "run" / "checkpoint").write_text("ckpt_20\n")
    for wrong, message in (
        ([], "hashed ids need a map: graphmill convert and remap with --id-map TYPE=FILE"),
        (["--id-map", "user"], "expected TYPE=FILE or TYPE=int64, found 'user'"),
        (["--id-map", "user=a", "--id-map", "user=b"], "expected each type once, found 'user' again"),
        (["--id-map", "user=a", "--id-map-columns", "a"], "--id-map-columns: expected RAW,ID"),
        (["--id-map", f"user={tmp_path}/none.parquet"], "none.parquet"),
        (["--id-map", "user=int64", "--format", "recis"], "as the source or as the target, found recis to"),
    ):
        words = ["convert", tmp_path / "run", tmp_path / "new", "--format", "pbg", *wrong]
        assert code_of(main.command, *words) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_embeddings_of_half_precision_or_several_dimensions(tmp_path: Path) -> None:
    ids, maps = np.array([3, -4]), IdMaps({"t": IdMap("int64")})
    half = torch.tensor([[1.5, -2.0], [0.25, 4.0]], dtype=torch.bfloat16)
    save_shards(tmp_path / "half", table_of(ids, half))
    convert(str(tmp_path / "half"), str(tmp_path / "pbg"), "pbg", id_maps=maps)
    there, entities = str(tmp_path / "pbg/checkpoint"), str(tmp_path / "pbg/entities")
    convert(there, str(tmp_path / "back"), "recis", id_maps=maps, entity_path=entities)
    found = RecisReader(tmp_path / "back").table("t")
    assert {each: row.dtype for each, row in found.items()} == {3: torch.float32, -4: torch.float32}
    assert (found[3].tolist(), found[-4].tolist()) == ([1.5, -2.0], [0.25, 4.0])
    save_shards(tmp_path / "deep", table_of(ids, np.zeros((2, 3, 4), np.float32)))
    with pytest.raises(FormatError, match=r"'t@embedding': expected floats .*, found \(2, 3, 4\)"):
        convert(str(tmp_path / "deep"), str(tmp_path / "x"), "pbg", id_maps=maps)


# Raw ids of 50 MB and a table of 50 MB, there and back, in pieces of 4 MB; only memory of no file counts.
# Copies of both would take more than 150 MB.
_BOUNDED = """
import sys
from graphmill.checkpoints import id_join
from graphmill.checkpoints.id_maps import IdMap, IdMaps
from graphmill.convert import convert
from tests.graphmill.formats.bounded import watched
id_join.PIECE_BYTES, id_join.MOST_FILES = 4 << 20, 8
def there_and_back(root):
    maps = IdMaps({"user": IdMap(root + "/map.parquet")}, 2)
    convert(root + "/recis", root + "/pbg", "pbg", id_maps=maps)
    source, target, entities = (root + each for each in ("/pbg/checkpoint", "/back", "/pbg/entities"))
    convert(source, target, "recis", shard_num=2, id_maps=maps, entity_path=entities)
there_and_back(sys.argv[1] + "/small")  # warm up
with watched() as most:
    there_and_back(sys.argv[1] + "/large")
print(*most)
"""


@pytest.mark.slow
def test_maps_and_tables_may_be_larger_than_memory(tmp_path: Path, forked: Forks) -> None:
    for name, count in (("small", 50_000), ("large", 750_000)):
        ids = np.arange(count) * 6364136223846793005
        raw = [f"https://example.org/an/id/of/sixty/characters/{each:020d}" for each in ids.tolist()]
        rows = np.broadcast_to(np.float32(1), (count, 16))
        save_shards(tmp_path / name / "recis", {"user": (ids, {"embedding": rows})})
        _write_map(tmp_path / name / "map.parquet", raw, ids)
    assert int(forked("python", "-c", _BOUNDED, tmp_path).stdout) < 96 << 20
