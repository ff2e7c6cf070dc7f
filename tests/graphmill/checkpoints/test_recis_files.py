"""RecIS checkpoints: the worked example of the format's page, shards, names, and the library as a reader."""

import json
import struct
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from graphmill.checkpoints import open_checkpoint
from graphmill.checkpoints.recis import CheckpointReader, HashTable, Loader, Saver, hash_slot, slice_of
from graphmill.checkpoints.recis.safetensors import SafetensorsFile
from graphmill.errors import FormatError, NotFoundError
from tests.contents import contents
from tests.graphmill.checkpoints.recis_rules import RecisReader, load, rows_of, save_shards, saver, table_of

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
]


def test_worked_example(tmp_path: Path) -> None:
    ids = np.array([7, 65543, 40000, 123456789, -3])
    assert hash_slot(ids).tolist() == [7, 7, 40000, 52501, 65533]
    fc = {"fc.weight": torch.ones(1, 2)}
    save_shards(tmp_path, {"user_id": (ids, {"embedding": rows_of(ids)})}, 2, **fc)

    jsons = {"index", "tensorkey.json", "torch_rank_weights_embs_table_multi_shard.json"}
    blocks = {f"model-{number:06d}-of-000002.safetensors" for number in range(2)}
    assert {each.name for each in tmp_path.iterdir()} == jsons | blocks
    assert (tmp_path / "index").read_text() == (
        '{"block_index": {"fc.weight^ ": 0, "user_id.embedding/part_0_2": 0, "user_id.id/part_0_2": 0, '
        '"user_id.embedding/part_1_2": 1, "user_id.id/part_1_2": 1}, "file_index": '
        '{"model-000000-of-000002.safetensors": 0, "model-000001-of-000002.safetensors": 1}}'
    )
    assert (tmp_path / "tensorkey.json").read_text() == (
        '{"user_id.embedding/part_0_2": "user_id@embedding^00000@32768@65536", '
        '"user_id.id/part_0_2": "user_id@id^00000@32768@65536", '
        '"user_id.embedding/part_1_2": "user_id@embedding^32768@65536@65536", '
        '"user_id.id/part_1_2": "user_id@id^32768@65536@65536"}'
    )
    first = load_file(tmp_path / "model-000000-of-000002.safetensors")
    second = load_file(tmp_path / "model-000001-of-000002.safetensors")
    assert first.keys() == {"fc.weight^ ", "user_id.embedding/part_0_2", "user_id.id/part_0_2"}
    assert first["user_id.id/part_0_2"].tolist() == [7, 65543]
    assert second["user_id.id/part_1_2"].tolist() == [40000, 123456789, -3]
    assert second["user_id.id/part_1_2"].dtype == torch.int64
    np.testing.assert_array_equal(second["user_id.embedding/part_1_2"], rows_of(ids[2:]))
    with safe_open(tmp_path / "model-000000-of-000002.safetensors", "pt") as file:
        assert file.metadata() is None

    described = json.loads((tmp_path / "torch_rank_weights_embs_table_multi_shard.json").read_text())
    dense = {"dense": True, "dimension": 0, "dtype": "float32", "shape": [1, 2], "is_hashmap": False}
    assert described.pop("fc.weight^ ") == {"name": "fc.weight^ ", **dense}
    for part, rows in ((0, 2), (1, 3)):
        name, ids_name = f"user_id.embedding/part_{part}_2", f"user_id.id/part_{part}_2"
        keys = {"hashmap_key": ids_name, "hashmap_key_dtype": "int64", "hashmap_value": name}
        sparse = {"dense": False, "dimension": 2, "dtype": "float32", "shape": [rows, 2], "is_hashmap": True}
        assert described.pop(name) == {"name": name, **keys, **sparse}
    assert described == {}


@given(count=st.integers(1, 300))
def test_slices_cover_all_slots_once(count: int) -> None:
    slices = [slice_of(shard, count) for shard in range(count)]
    assert [each.begin for each in slices] == [0, *(each.end for each in slices[:-1])]
    assert slices[-1].end == 65536
    sizes = [each.end - each.begin for each in slices]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes.count(sizes[0]) in (65536 % count, count)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    values = torch.arange(6).reshape(3, 2).to(dtype)
    tensors: dict[str, Any] = {"w": values, "scalar": values[1, 1], "none": values[:0], "turned": values.T}
    if dtype != torch.bfloat16:
        tensors["array"] = values.numpy()
    table = HashTable(torch.tensor([5, 6, 7]), {"embedding": values})
    Saver(path=str(tmp_path), hashtables={"t": table}, tensors=tensors, parallel=2).save()
    reader = CheckpointReader(str(tmp_path))
    assert reader.tensor_names() == sorted([*tensors, "t@embedding", "t@id"])
    targets = {name: torch.zeros_like(torch.as_tensor(value)) for name, value in tensors.items()}
    loaded = HashTable.empty({"embedding": (dtype, 2)})
    Loader(str(tmp_path), {"t": loaded}, targets).load()
    targets["t@embedding"] = loaded.slots["embedding"]
    for name, value in {**tensors, "t@embedding": values}.items():
        read = reader.read_tensor(name)
        assert reader.tensor_dtype(name) == read.dtype == dtype
        assert reader.tensor_shape(name) == tuple(read.shape) == tuple(value.shape)
        assert torch.equal(read, torch.as_tensor(value))
        assert torch.equal(targets[name], read)


def test_tensors_fill_the_file_without_gaps() -> None:
    for described, num_bytes, message in (
        ({"a": (0, 4, 4)}, 3, "file is cut short or longer"),
        ({"a": (0, 4, 4)}, 5, "file is cut short or longer"),
        ({"a": (0, 4, 4), "b": (2, 4, 2)}, 4, "'b': expected its elements at byte"),
        ({"a": (0, 4, 4), "b": (5, 6, 1)}, 6, "'b': expected its elements at byte"),
        ({"a": (0, 4, 3)}, 4, "'a': expected dtype, shape, offsets that fit"),
        ({"a": (0, 1, True)}, 1, "'a': expected dtype, shape, offsets that fit"),
    ):
        header = {
            name: {"dtype": "U8", "shape": [size], "data_offsets": [start, stop]}
            for name, (start, stop, size) in described.items()
        }
        text = json.dumps(header).encode()
        content = struct.pack("<Q", len(text)) + text + bytes(num_bytes)
        with pytest.raises(FormatError, match=message):
            SafetensorsFile(pa.BufferReader(content), "here")


@pytest.mark.slow
@settings(max_examples=20)
@given(
    ids=st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, max_size=60),
    shards=st.integers(1, 6),
    loaded=st.integers(1, 7),
    parallel=st.integers(1, 9),
    num_tables=st.integers(0, 3),
    num_tensors=st.integers(0, 4),
    order=st.randoms(use_true_random=False),
)
def test_any_number_of_shards_to_any_other(
    tmp_path_factory, ids, shards, loaded, parallel, num_tables, num_tensors, order
):
    """Files are the same, whichever shard comes last, and numbered without gaps, as RecIS' reader has one
    place for each; every id is loaded by the shard that owns it, with its own rows, once."""
    all_ids = np.array(ids, np.int64)
    slots = {"embedding": rows_of(all_ids, 3), "sums": rows_of(all_ids, 1)}
    tables = {f"t{number}": (all_ids, slots) for number in range(num_tables)}
    tensors = {f"dense_{number}": torch.full((number + 1,), 1.0 + number) for number in range(num_tensors)}
    folders = [tmp_path_factory.mktemp("recis"), tmp_path_factory.mktemp("again")]
    for folder in folders:
        numbers = list(range(shards))
        order.shuffle(numbers)
        for shard in numbers:
            saver(folder, tables, shard, shards, parallel, **tensors).save()
    first, second = map(contents, folders)
    assert first == second
    index = json.loads(first["index"])
    total = len(index["file_index"])
    names = [f"model-{number:06d}-of-{total:06d}.safetensors" for number in range(total)]
    assert index["file_index"] == dict(zip(names, range(total), strict=True))
    assert len(first) == total + 3
    reader = RecisReader(folders[0])
    for name, value in tensors.items():
        assert torch.equal(reader.read(name), value)
    for name in tables:
        assert sorted(reader.table(name)) == sorted(ids)
        found: list[int] = []
        for shard in range(loaded):
            table = HashTable.empty({"embedding": ("float32", 3), "sums": ("float32", 1)}, shard, loaded)
            Loader(str(folders[0]), {name: table}, parallel=3).load()
            assert slice_of(shard, loaded).owns(table.ids).all()
            np.testing.assert_array_equal(table.slots["embedding"], rows_of(table.ids, 3))
            np.testing.assert_array_equal(table.slots["sums"], rows_of(table.ids, 1))
            found += table.ids.tolist()
        assert sorted(found) == sorted(ids)


def test_a_save_that_was_killed_while_it_named_files_is_finished_by_the_next(tmp_path: Path) -> None:
    """Every shard has written; some files have their names already, and `index` is missing."""
    saved, killed, tables = tmp_path / "saved", tmp_path / "killed", table_of([7, 40000])
    save_shards(saved, tables, 2)
    saver(killed, tables, 0, 2).save()
    last = saver(killed, tables, 1, 2)
    named = killed / "model-000000-of-000002.safetensors"
    (killed / "shard-000000-of-000002-000000.safetensors").rename(named)
    last.save()
    assert contents(killed) == contents(saved)


def test_names_are_matched_whole(tmp_path: Path) -> None:
    """A slot whose name begins another's, a table that is called as a slot, a tensor with the sign in it."""
    ids = np.arange(4)
    slots = {"embedding": rows_of(ids), "exp_avg": 2 * rows_of(ids), "exp_avg_sq": 3 * rows_of(ids)}
    factors = {"user": 1, "user.embedding": 10, "user@id": 100}
    tables = {
        name: HashTable(ids, {slot: factor * rows for slot, rows in slots.items()})
        for name, factor in factors.items()
    }
    dense = {"user": torch.ones(1), "a@b": torch.zeros(1)}
    Saver(path=str(tmp_path), hashtables=tables, tensors=dense).save()
    reader = CheckpointReader(str(tmp_path))
    for name, factor in factors.items():
        for slot, rows in slots.items():
            np.testing.assert_array_equal(reader.read_tensor(f"{name}@{slot}"), factor * rows)
    for unknown in ("user@exp", "use", "user@exp_avg_s", "user.embedding", "fc"):
        for ask in (reader.read_tensor, reader.tensor_shape, reader.tensor_dtype):
            with pytest.raises(KeyError, match="no tensor"):
                ask(unknown)
    assert torch.equal(reader.read_tensor("a@b"), torch.zeros(1))
    described = json.loads((tmp_path / "torch_rank_weights_embs_table_multi_shard.json").read_text())
    assert described["user.embedding.embedding/part_0_1"]["hashmap_key"] == "user.embedding.id/part_0_1"
    assert "user.exp_avg/part_0_1" not in described


def test_a_missing_name_is_an_error_unless_allowed(tmp_path: Path) -> None:
    save_shards(tmp_path, table_of(np.arange(4)), **{"fc.weight": torch.ones(1, 2)})
    table = HashTable.empty({"embedding": ("float32", 2), "sums": ("float32", 1)})
    tensors = {"fc.weight": torch.zeros(1, 2), "fc.bias": torch.full((1,), 7.0)}
    with pytest.raises(KeyError, match=r"no tensors fc\.bias, t@sums"):
        Loader(str(tmp_path), {"t": table}, tensors).load()
    Loader(str(tmp_path), {"t": table}, tensors, allow_missing=True).load()
    assert {name: each.tolist() for name, each in tensors.items()} == {"fc.weight": [[1, 1]], "fc.bias": [7]}
    assert not len(table)  # rows without one of their slots are none

    tensors = {"head.weight": torch.zeros(1, 2), "fc.bias": torch.zeros(1)}

    def renamed(load_info: dict[str, str]) -> dict[str, str]:
        assert load_info == {"head.weight": "head.weight", "fc.bias": "fc.bias"}
        return {"head.weight": "fc.weight"}

    def without(name: str, load_info: dict[str, str]) -> dict[str, str]:
        return {key: source for key, source in load_info.items() if key != name}

    Loader(str(tmp_path), None, tensors, filter_func=renamed).load()
    assert tensors["head.weight"].tolist() == [[1, 1]]
    for left_out in ("t@sums", "t@id"):
        with pytest.raises(FormatError, match=f"filter_func left out {left_out}: rows are loaded with all"):
            Loader(str(tmp_path), {"t": table}, filter_func=partial(without, left_out)).load()
    Loader(str(tmp_path), {"t": table}, filter_func=lambda _: {}).load()
    with pytest.raises(FormatError, match=r"'fc\.weight' has shape \(1, 2\), expected \(2, 2\)"):
        Loader(str(tmp_path), None, {"fc.weight": torch.zeros(2, 2)}).load()
    with pytest.raises(FormatError, match=r"expected rows of shape \(3,\), found \(2,\)"):
        load(tmp_path, 3)


def test_only_filtered_blocks_are_written(tmp_path: Path) -> None:
    tables = {"t": HashTable(np.arange(3), {"embedding": np.ones((3, 1), np.float32), "sums": np.ones(3)})}

    def without_sums(blocks: list[Any]) -> list[Any]:
        return [each for each in blocks if each.name != "t@sums"]

    Saver(path=str(tmp_path), hashtables=tables, filter_func=without_sums).save()
    assert CheckpointReader(str(tmp_path)).tensor_names() == ["t@embedding", "t@id"]


def test_an_id_of_another_shard_or_one_that_comes_twice_is_refused(tmp_path: Path) -> None:
    path, rows = str(tmp_path), np.ones((2, 1), np.float32)
    table = HashTable(np.array([7, 40000]), {"embedding": rows}, 0, 2)
    with pytest.raises(FormatError, match=r"id 40000 has hash slot 40000, which .* slice 00000@32768"):
        Saver(0, 2, 1, path, {"t": table}).save()
    with pytest.raises(FormatError, match="table 't' is of the slice"):
        Saver(1, 2, 1, path, {"t": table})
    assert not (tmp_path / "index").exists()
    save_shards(tmp_path, table_of([4, 4], rows))
    with pytest.raises(FormatError, match=r"table 't': expected each id once, found 4 again"):
        load(tmp_path, 1)


def test_index_comes_last_and_a_folder_holds_one_checkpoint(tmp_path: Path) -> None:
    for shard in range(3):
        with pytest.raises(NotFoundError, match="index"):
            CheckpointReader(str(tmp_path))
        saver(tmp_path, table_of(np.arange(0)), shard, 3).save()
    assert CheckpointReader(str(tmp_path)).tensor_shape("t@embedding") == (0, 2)
    assert not [each.name for each in tmp_path.iterdir() if each.name.startswith(("shard", "."))]
    with pytest.raises(FormatError, match="holds a checkpoint already"):
        Saver(0, 1, 1, str(tmp_path), tensors={"a": torch.ones(1)}).save()


def test_shards_that_save_at_the_same_time(tmp_path: Path) -> None:
    ids = np.arange(5000) * 7919
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda shard: saver(tmp_path, table_of(ids), shard, 6, 2).save(), range(6)))
    table = load(tmp_path)
    assert sorted(table.ids) == sorted(ids)
    np.testing.assert_array_equal(table.slots["embedding"], rows_of(table.ids))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("index", lambda it: it["file_index"].update({"../../etc/x": 0}), "names of files in the same fold"),
        ("index", lambda it: it["block_index"].update({"t.id/part_0_2": 9}), "lies in file 9"),
        ("index", lambda it: it["block_index"].pop("t.id/part_0_2"), "slices that cover all 65536 hash slot"),
        ("index", lambda it: it.pop("file_index"), "file_index: expected numbers by name"),
        ("tensorkey.json", lambda it: it.pop("t.id/part_0_2"), "neither a dense tensor nor in tensorkey"),
        *(
            ("tensorkey.json", lambda it, text=text: it.update({"t.id/part_0_2": text}), message)
            for text, message in (
                ("t@id^00@50@99", r"spread over 99 hash slots; this reader knows 65536"),
                ("t@id^00000@40000@65536", "found 00000@40000@65536, 32768@65536@65536: is a shard"),
                ("t@id^" + "9" * 5000 + "@1@65536", "expected a slice begin@end@size"),
                ("t", "expected table@slot"),
            )
        ),
    ],
)
def test_indexes_that_contradict(tmp_path: Path, name: str, change: Any, message: str) -> None:
    save_shards(tmp_path, table_of([7, 40000]), 2)
    content = json.loads((tmp_path / name).read_text())
    change(content)
    (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(FormatError, match=message):
        load(tmp_path)


def test_slots_are_read_as_they_are_written(tmp_path: Path) -> None:
    """A slot is anything with a shape, a dtype and slices: it is asked for pieces, never for all."""
    asked: list[int] = []

    class Lazy:
        shape, dtype = (1 << 18, 16), np.dtype(np.float32)

        def __getitem__(self, rows: slice) -> np.ndarray:
            asked.append(rows.stop - rows.start)
            numbers = np.arange(rows.start, rows.stop, dtype=np.float32)
            return np.broadcast_to(numbers[:, None], (asked[-1], 16))

    ids = np.arange(1 << 18)
    Saver(path=str(tmp_path), hashtables={"t": HashTable(ids, {"embedding": Lazy()})}, parallel=2).save()
    assert sum(asked) == 1 << 18
    assert max(asked) * 16 * 4 <= 4 << 20
    read = CheckpointReader(str(tmp_path)).read_tensor("t@embedding")
    np.testing.assert_array_equal(read[:, 3], ids.astype(np.float32))


def test_files_of_recis_itself_are_read(tmp_path: Path) -> None:
    first = {"t.id/part_0_1": torch.tensor([1, 0, 2]), "fc.weight^ ": torch.ones(1)}
    second = {"t.embedding/part_0_1": torch.tensor([[10.0], [0.0], [20.0]])}
    for number, tensors in enumerate((first, second)):
        save_file(tensors, tmp_path / f"model-{number:06d}-of-000002.safetensors", {"format": "pt"})
    blocks = {"fc.weight^ ": 0, "t.id/part_0_1": 0, "t.embedding/part_0_1": 1}
    files = {f"model-{number:06d}-of-000002.safetensors": number for number in range(2)}
    (tmp_path / "index").write_text(json.dumps({"block_index": blocks, "file_index": files}))
    slots = {f"t.{slot}/part_0_1": f"t@{slot}^00000@65536@65536" for slot in ("id", "embedding")}
    (tmp_path / "tensorkey.json").write_text(json.dumps(slots, indent=4))
    table = load(tmp_path, 1)
    rows = zip(table.ids.tolist(), table.slots["embedding"][:, 0].tolist(), strict=True)
    assert dict(rows) == {0: 0, 1: 10, 2: 20}
    found = open_checkpoint(str(tmp_path))
    assert (found.version, found.config, found.counts) == (0, None, {"t": [3]})
    np.testing.assert_array_equal(found.read_embeddings("t", 0), [[0], [10], [20]])
    assert found.unread == ["fc.weight"]
    for ids in (torch.tensor([1.0, 0.0, 2.0]), torch.tensor(3)):
        save_file(first | {"t.id/part_0_1": ids}, tmp_path / "model-000000-of-000002.safetensors")
        with pytest.raises(FormatError, match=r"'t\.id/part_0_1': expected rows, ids as int64"):
            open_checkpoint(str(tmp_path)).read_embeddings("t", 0)


@pytest.mark.parametrize("ids", [[0, 2, 2], [2, 0, 2], [0, 1, 1], [1, 0, 1]])
def test_a_table_that_lacks_an_id_has_no_row_of_chance_for_it(tmp_path: Path, ids: list[int]) -> None:
    rows = {"embedding": rows_of(np.array(ids))}
    Saver(path=str(tmp_path), hashtables={"user": HashTable(np.array(ids), rows)}).save()
    (missing,) = {0, 1, 2} - set(ids)
    with pytest.raises(FormatError, match=f"user@embedding: id {missing} is missing: expected every id"):
        open_checkpoint(str(tmp_path)).read_embeddings("user", 0)
