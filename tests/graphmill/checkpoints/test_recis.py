"""Checkpoints in RecIS' layout: names that RecIS' reader tells apart, and files of earlier versions."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from graphmill.checkpoints import ModelState, open_checkpoint, recognise
from graphmill.checkpoints.recis.checkpoint import write
from graphmill.convert import convert
from graphmill.errors import FormatError, NotFoundError
from graphmill.model.parameters import in_order
from tests.graphmill.checkpoints.recis_rules import RecisReader, load, save_shards
from tests.graphmill.checkpoints.samples import GROUP, MemoryCheckpoint, check_same, config_of, sample

TYPES = st.sampled_from(["user", "user_id", "user2", "use", "id", "embedding", "item", "a b"])
KEYS = st.sampled_from(
    [
        *("rhs_operators.1.real", "rhs_operators.11.real", "rhs_operators.1.imag"),
        *("lhs_operators.0.linear_transformation", "lhs_operators.0.linear_transformations"),
    ]
)


def _checkpoint(types: list[str], keys: list[str]) -> MemoryCheckpoint:
    rows = {name: np.full((3, 2), number, np.float32) for number, name in enumerate(types)}
    state = {"state": {0: {"step": 0, "sum": torch.ones(3)}}, "param_groups": [GROUP]}
    tables = {name: [(each, state)] for name, each in rows.items()}
    names = in_order([*keys, *(f"global_embs.emb_{name}" for name in types)], types)
    parameters = {name: torch.full((2,), 1.0 + number) for number, name in enumerate(names)}
    sums = {n: {"step": 0, "sum": torch.full((2,), 0.5 + n)} for n in range(len(names))}
    model = ModelState(parameters, {"state": sums, "param_groups": [GROUP | {"params": list(sums)}]})
    return MemoryCheckpoint(tables, model, config_of(tables))


@pytest.mark.slow
@settings(max_examples=10)
@given(
    types=st.lists(TYPES, min_size=1, max_size=4, unique=True),
    keys=st.lists(KEYS, max_size=4, unique=True),
    shards=st.integers(1, 3),
)
def test_no_name_begins_another(tmp_path_factory, types, keys, shards):
    """Asked for a name, RecIS 1.0.0 returns all tensors whose names begin with it, one after the other."""
    path = tmp_path_factory.mktemp("names") / "checkpoint"
    checkpoint = _checkpoint(types, keys)
    write(checkpoint, str(path), shards)
    reader = RecisReader(path)
    names = reader.names()
    assert not [(a, b) for a in names for b in names if a != b and b.startswith(a)]
    for name in names:
        assert torch.equal(reader.read(name), reader.read(name, "^"))
    for name, ((rows, _),) in checkpoint.tables.items():
        assert reader.table(name).keys() == {0, 1, 2}
        assert torch.equal(reader.table(name)[2], torch.from_numpy(rows[2]))
    check_same(open_checkpoint(str(path)), checkpoint)


def test_names_of_earlier_versions_are_read(tmp_path: Path) -> None:
    """`{key}.optimizer.sum`, and gaps in the numbers of files."""
    old = "optimizer.sum."

    def key_before(key: str) -> str:
        return f"{key.removeprefix(old)[:-2]}.optimizer.sum^ " if key.startswith(old) else key

    def file_before(number: int) -> str:
        return f"model-{7 * number:06d}-of-000099.safetensors"

    write(sample(), str(tmp_path))
    index = json.loads((tmp_path / "index").read_text())
    for name, number in index["file_index"].items():
        tensors = {key_before(key): tensor for key, tensor in load_file(tmp_path / name).items()}
        (tmp_path / name).unlink()
        save_file(tensors, tmp_path / file_before(number))
    files = {file_before(number): 7 * number for number in index["file_index"].values()}
    blocks = {key_before(key): 7 * number for key, number in index["block_index"].items()}
    (tmp_path / "index").write_text(json.dumps({"file_index": files, "block_index": blocks}))
    found = open_checkpoint(str(tmp_path))
    check_same(found, sample())
    assert found.unread == []


@pytest.mark.parametrize("name", ["user@id", "a^b"])
def test_a_type_that_recis_would_take_apart_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(FormatError, match="expected a name without @ and"):
        write(_checkpoint([name], []), str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_the_newest_checkpoint_of_a_training_run_is_taken(tmp_path, caplog):
    """RecIS adds a line to `checkpoint` after each save; a folder that is not listed is unfinished."""
    for number, name in enumerate(("ckpt_100", "ckpt_90")):
        write(sample(seed=number), str(tmp_path / name))
    (tmp_path / "ckpt_110").mkdir()
    (tmp_path / "ckpt_110" / "model-000000-of-000004.safetensors").write_bytes(b"half")
    (tmp_path / "checkpoint").write_text("ckpt_80\nckpt_100\n ckpt_90 \n\n")
    assert recognise(str(tmp_path)) == "recis"
    with caplog.at_level("INFO", "graphmill"):
        found = open_checkpoint(str(tmp_path))
    assert found.uri == str(tmp_path / "ckpt_90")
    assert f"{tmp_path}: the newest checkpoint is {tmp_path}/ckpt_90" in caplog.text
    check_same(found, sample(seed=1))

    (tmp_path / "ckpt_90" / "index").unlink()  # RecIS does not go back to an older one either
    message = r"ckpt_90: .* has no 'index'.*or name another: ckpt_80, ckpt_100"
    with pytest.raises(NotFoundError, match=message):
        open_checkpoint(str(tmp_path))
    check_same(open_checkpoint(str(tmp_path / "ckpt_100")), sample(seed=0))


@pytest.mark.parametrize("content", ["../ckpt_1\n", "/etc\n", "..\n", "\n"])
def test_a_run_names_checkpoints_in_its_own_folder(tmp_path: Path, content: str) -> None:
    write(sample(), str(tmp_path / "ckpt_1"))
    (tmp_path / "run" / "ckpt_2").mkdir(parents=True)
    (tmp_path / "run" / "checkpoint").write_text(content)
    with pytest.raises(FormatError, match=r"expected (names of folders in the same folder|the name of a)"):
        open_checkpoint(str(tmp_path / "run"))


def _save_adam(path: Path, shards: int, ids: np.ndarray, types: Any = ("user", "user.embedding")) -> None:
    """A checkpoint as RecIS saves it after training with Adam: hashed ids, slots of several dtypes."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((len(ids), 4), np.float32)
    slots: dict[str, Any] = {
        "embedding": torch.from_numpy(rows),
        "sparse_adam_exp_avg": torch.from_numpy(rows * 3),
        "sparse_adam_exp_avg_sq": torch.from_numpy(rows * rows),
        "half": torch.from_numpy(rows).to(torch.bfloat16),
        "last_seen": torch.from_numpy(ids // 7),
    }
    betas = torch.tensor([0.25], dtype=torch.float64), torch.tensor(0.5)
    dense = dict(zip(("sparse_adam_beta1", "sparse_adam_beta2"), betas, strict=True))
    dense["sparse_adam_step"] = torch.tensor([12])
    save_shards(path, dict.fromkeys(types, (ids, slots)), shards, **dense)
    (path / "model.pt").write_bytes(b"the dense model")
    (path / "extra.pt").write_bytes(b"its optimizer")
    (path / "io_state_0.pt").write_bytes(b"a position")
    (path / "io_state_count").write_text("1")


@pytest.mark.slow
@settings(max_examples=8)
@given(
    ids=st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, max_size=60),
    before=st.integers(1, 4),
    after=st.integers(1, 4),
)
def test_other_shards_keep_every_tensor_bit_for_bit(tmp_path_factory, ids, before, after):
    """Adam's slots, steps and betas, hashed ids, and the files of the dense model."""
    root = tmp_path_factory.mktemp("adam")
    numbers = np.array(ids, np.int64)
    _save_adam(root / "ckpt_7", before, numbers)
    (root / "checkpoint").write_text("ckpt_7\n")
    done = convert(str(root), str(root / "after"), "recis", shard_num=after)
    assert done.not_kept == ["io_state_0.pt", "io_state_count"]
    old, new = RecisReader(root / "ckpt_7"), RecisReader(root / "after")
    assert new.names() == old.names()
    for name in ("sparse_adam_step", "sparse_adam_beta1", "sparse_adam_beta2"):
        assert new.read(name).dtype == old.read(name).dtype
        assert torch.equal(new.read(name), old.read(name))
    for table in ("user", "user.embedding"):
        for slot in ("embedding", "sparse_adam_exp_avg", "sparse_adam_exp_avg_sq", "half", "last_seen"):
            found, expected = new.table(table, slot), old.table(table, slot)
            assert found.keys() == expected.keys() == set(ids)
            assert all(torch.equal(found[each], expected[each]) for each in ids)
            assert all(found[each].dtype == expected[each].dtype for each in ids)
    for name in ("model.pt", "extra.pt"):
        assert (root / "after" / name).read_bytes() == (root / "ckpt_7" / name).read_bytes()
    index = json.loads((root / "after" / "index").read_text())
    assert index["file_index"].keys() == {each.name for each in (root / "after").glob("*.safetensors")}


def test_large_tables_are_cut_in_runs_and_batches(tmp_path: Path) -> None:
    rows = (np.arange(200_000)[:, None] % 10007).astype(np.float32)
    write(MemoryCheckpoint({"t": [(rows, None)]}, None, None), str(tmp_path / "three"), 3)
    convert(str(tmp_path / "three"), str(tmp_path / "two"), "recis", shard_num=2)
    table = load(tmp_path / "two", 1)
    assert sorted(table.ids) == list(range(len(rows)))
    np.testing.assert_array_equal(table.slots["embedding"][:, 0], table.ids % 10007)
    rows[-1] = np.nan
    save_shards(tmp_path / "nan", {"t": (np.arange(len(rows)), {"embedding": rows})})
    with pytest.raises(FormatError, match="row 199999: expected finite numbers, found nan"):
        convert(str(tmp_path / "nan"), str(tmp_path / "target"), "recis", shard_num=2)


def test_slots_that_the_target_cannot_hold_and_ids_of_another_slice(tmp_path: Path) -> None:
    adam = tmp_path / "adam"
    _save_adam(adam, 2, np.arange(20))
    with pytest.raises(FormatError, match=r"expected a name: no dot.*, found 'user\.embedding'"):
        convert(str(adam), str(tmp_path / "pbg"), "pbg")
    _save_adam(tmp_path / "plain", 2, np.arange(20), ("user",))
    told = convert(str(tmp_path / "plain"), str(tmp_path / "pbg"), "pbg").not_kept
    for name in ("user@sparse_adam_exp_avg", "user@sparse_adam_exp_avg_sq", "sparse_adam_step"):
        assert f"{name}, of which nothing is known here" in told
    keys = json.loads((adam / "tensorkey.json").read_text())
    swapped = {"0_2": "32768@65536@65536", "1_2": "00000@32768@65536"}
    for key, value in keys.items():
        keys[key] = f"{value.rpartition('^')[0]}^{swapped[key.rpartition('part_')[2]]}"
    (adam / "tensorkey.json").write_text(json.dumps(keys))
    with pytest.raises(FormatError, match=r"expected \(20,.*\), found \(0,.*\) in their slices"):
        convert(str(adam), str(tmp_path / "target"), "recis", shard_num=2)
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("name", ["embedding", "sparse_adam_exp_avg_sq", "dense"])
def test_other_shards_have_finite_numbers(tmp_path: Path, name: str) -> None:
    rows = {slot: np.ones((3, 2), np.float32) for slot in ("embedding", "sparse_adam_exp_avg_sq")}
    dense = torch.ones(2)
    (dense if name == "dense" else rows[name])[1] = np.nan
    save_shards(tmp_path / "nan", {"t": (np.arange(3), rows)}, dense=dense)
    with pytest.raises(FormatError, match=rf"{name}.*: row 1: expected finite numbers, found nan"):
        convert(str(tmp_path / "nan"), str(tmp_path / "target"), "recis", shard_num=2)
    assert not (tmp_path / "target").exists()
    convert(str(tmp_path / "nan"), str(tmp_path / "target"), "recis", shard_num=2, allow_non_finite=True)
