"""PBG's legacy files: index bases, what PBG of 2019 wrote, hostile pickles, input."""

import io
import pickle
import re
from collections import OrderedDict
from itertools import product
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from graphmill import storage
from graphmill.checkpoints import open_checkpoint
from graphmill.checkpoints import pbg as v1
from graphmill.checkpoints.legacy import checkpoint as legacy
from graphmill.checkpoints.legacy import inputs
from graphmill.convert import legacy as conversion
from graphmill.errors import ConfigError, FormatError
from graphmill.formats import edge_buckets, entity_counts
from graphmill.formats.torch_files.write import NewTorchTensor, save
from graphmill.vocab import Bucket
from tests.commands import run_command
from tests.graphmill.checkpoints.samples import Trap
from tests.graphmill.config.test_pbg_values import JANUARY

ROWS = np.arange(12, dtype=np.float32).reshape(6, 2)


def _save_as_2019(content: Any, path: Path) -> None:
    torch.save(content, path, _use_new_zipfile_serialization=False)


def _rows(path: Path, entity_type: str, partition: int, **options: Any) -> np.ndarray:
    return open_checkpoint(str(path), **options).read_embeddings(entity_type, partition)


@pytest.mark.parametrize(("numbers", "base"), [((1, 2, 3), 1), ((0, 1, 2), 0), ((1,), 1), ((0,), 0)])
def test_index_base_by_names(tmp_path: Path, numbers: tuple[int, ...], base: int) -> None:
    for number in numbers:
        torch.save((torch.full((2, 2), float(number)), None), tmp_path / f"user_{number}.pt")
    for partition in range(len(numbers)):
        assert _rows(tmp_path, "user", partition)[0, 0] == partition + base


def test_index_base_is_not_guessed(tmp_path: Path) -> None:
    """Types that disagree, gaps, and files of both eras in one folder are refused; who knows may say."""
    for name in ("user_0", "user_1", "item_1", "item_2"):
        torch.save((torch.full((2, 2), float(name[-1])), None), tmp_path / f"{name}.pt")
    neither = r"cannot tell the index base: fits neither.*set index_base to 0 or 1"
    with pytest.raises(FormatError, match=neither):
        _rows(tmp_path, "user", 0)
    with pytest.raises(FormatError, match="partitions from 1 on are not complete"):
        _rows(tmp_path, "user", 0, index_base=1)

    torch.save((torch.full((2, 2), 2.0), None), tmp_path / "user_2.pt")
    torch.save((torch.full((2, 2), 0.0), None), tmp_path / "item_0.pt")
    config = {"entities": {name: {"numPartitions": 2} for name in ("user", "item")}}
    torch.save((config, 0), tmp_path / "METADATA_1.pt")
    with pytest.raises(FormatError, match="fits numbering from 0 and from 1"):
        _rows(tmp_path, "user", 0)
    for base in (0, 1):
        assert _rows(tmp_path, "user", 1, index_base=base)[0, 0] == base + 1


@pytest.mark.parametrize(
    ("numbers", "declared", "message"),
    [
        ({"user": (1, 3)}, {"user": 3}, r"user_2\.pt\.7 \(partition 2 of 3 of 'user'\)"),
        ({"user": (1, 2), "item": (1,)}, {"user": 3, "item": 1}, r"user_3\.pt\.7 \(partition 3 of 3 "),
        ({"user": (1, 2)}, {"user": 3}, r"user_0\.pt\.7 .*, or .*/user_3\.pt\.7"),
        ({"user": (1,)}, {"user": 1, "item": 2}, r"item_1\.pt\.7 \(.* 1 of 2 of 'item'\), .*item_2\.pt\.7"),
        ({"user": (0, 2), "item": (0, 1)}, None, r"user_1\.pt\.7 \(partition 2 of 3 of 'user'\)"),
        ({"user": (1, 3)}, {"user": 10**30}, r"user_2\.pt\.7 \(partition 2 of 10{30} of 'user'\)"),
    ],
)
def test_a_lost_partition_is_called_so(tmp_path, numbers, declared, message):
    for entity_type, found in numbers.items():
        for number in found:
            torch.save((torch.zeros(2, 2), None), tmp_path / f"{entity_type}_{number}.pt.7")
    if declared:
        entities = {each: {"numPartitions": count} for each, count in declared.items()}
        relations = [{"name": each, "lhs": "user", "rhs": each} for each in declared]
        torch.save(({"entities": entities, "relations": relations}, 0), tmp_path / "METADATA_1.pt.7")
    with pytest.raises(FormatError, match=f"{message}.*: this partition is lost, there is no such file"):
        open_checkpoint(str(tmp_path))


@pytest.mark.parametrize("name", ["entity_count_{}_2.txt", "entity_names_{}_2.json", "entity_count_{}_3.pt"])
def test_counts_and_names_tell_that_the_last_partition_is_lost(tmp_path: Path, name: str) -> None:
    """Without METADATA; those of other types, or of fewer partitions, tell nothing."""
    loaded, entities = tmp_path / "loaded", tmp_path / "entities"
    loaded.mkdir()
    entities.mkdir()
    for number in (1, 2):
        torch.save((torch.zeros(2, 2), None), loaded / f"user_{number}.pt")
        for entity_type in ("user", "item"):
            (entities / re.sub(r"\d", str(number - ("pt" not in name)), name.format(entity_type))).touch()
    options = "--format", "pbg", "--entity-path", entities
    (entities / name.format("item")).touch()
    run_command("convert", loaded, tmp_path / "whole", *options)
    (entities / name.format("user")).touch()
    lost = r"user_3\.pt \(partition 3 of 3 of 'user'\): this partition is lost"
    with pytest.raises(FormatError, match=lost):
        run_command("convert", loaded, tmp_path / "new", *options)


def test_load_path_needs_nothing_but_embeddings(tmp_path: Path) -> None:
    torch.save((torch.nn.Parameter(torch.from_numpy(ROWS)), None), tmp_path / "user_1.pt")
    found = open_checkpoint(str(tmp_path))
    assert (found.format, found.version, found.config, found.iteration) == ("pbg-legacy", 0, None, None)
    assert found.read_model() is None
    assert found.read_optimizer_state("user", 0) is None
    np.testing.assert_array_equal(found.read_embeddings("user", 0), ROWS)

    (tmp_path / "user_1.pt").rename(tmp_path / "user_1.pt.5")
    assert open_checkpoint(str(tmp_path)).version == 5
    torch.save((torch.from_numpy(ROWS), None), tmp_path / "user_1.pt.6")
    with pytest.raises(FormatError, match=r"no CHECKPOINT_VERSION and versions \[5, 6\]; write the one"):
        open_checkpoint(str(tmp_path))
    assert open_checkpoint(str(tmp_path), version=6).version == 6
    (tmp_path / "CHECKPOINT_VERSION").write_text("5")
    assert open_checkpoint(str(tmp_path)).version == 5
    (tmp_path / "CHECKPOINT_VERSION").write_text("five")
    message = "CHECKPOINT_VERSION: expected the number of a version, found 'five'"
    with pytest.raises(FormatError, match=message):
        open_checkpoint(str(tmp_path))


def test_as_pbg_of_2019_wrote_it(tmp_path: Path) -> None:
    """Pickles of before torch 1.6, parameters numbered by address, rotations that multiply from the right."""
    address = 140_234_567_890
    group = {"lr": 0.1, "params": [address]}
    state = {"state": {address: {"sum": torch.arange(6.0)}}, "param_groups": [group]}
    _save_as_2019((torch.nn.Parameter(torch.from_numpy(ROWS)), state), tmp_path / "user_1.pt.3")
    rotation, translation = torch.arange(4.0).reshape(2, 2), torch.ones(2)
    parameters = {"rhs_operators.0.rotation": rotation, "rhs_operators.0.translation": translation}
    model = OrderedDict(parameters | {"global_embs.emb_user": torch.zeros(2)})
    addresses = [address + number for number in range(3)]
    sums = ({"step": 4, "sum": 10 * value} for value in model.values())
    states = dict(zip(addresses, sums, strict=True))
    optimizer = {"state": states, "param_groups": [{"lr": 0.1, "params": addresses}]}
    config = {"entities": {"user": {"numPartitions": 1}}, "edgePaths": ["a", "b"], "numEpochs": 4}
    _save_as_2019((config, 2, 0, model, optimizer), tmp_path / "METADATA_1.pt.3")
    (tmp_path / "CHECKPOINT_VERSION").write_text("3")

    found = open_checkpoint(str(tmp_path))
    np.testing.assert_array_equal(found.read_embeddings("user", 0), ROWS)
    found_sums = found.read_optimizer_state("user", 0)["state"][0]["sum"]
    np.testing.assert_array_equal(found_sums, np.arange(6))
    read = found.read_model()
    assert torch.equal(read.parameters["rhs_operators.0.linear_transformation"], rotation.T)
    by_key = dict(zip(read.parameters, read.optimizer_state["state"].values(), strict=True))
    assert torch.equal(by_key["rhs_operators.0.linear_transformation"]["sum"], 10 * rotation.T)
    assert torch.equal(by_key["rhs_operators.0.translation"]["sum"], torch.full((2,), 10.0))
    assert found.config["edge_paths"] == ["a", "b"]
    assert (found.iteration.epoch_idx, found.iteration.edge_path_idx) == (1, 0)
    assert found.iteration.edge_path == "a"


@pytest.mark.parametrize(
    ("place", "as_zip"), [("user_1.pt", True), ("METADATA_1.pt", False), ("entity_count_user_1.pt", True)]
)
def test_hostile_pickles_are_refused_by_name(tmp_path, monkeypatch, place, as_zip):
    monkeypatch.chdir(tmp_path)
    torch.save((torch.ones(2, 2), None), tmp_path / "user_1.pt")
    torch.save((torch.ones(2, 2), Trap()), tmp_path / place, _use_new_zipfile_serialization=as_zip)
    with pytest.raises(FormatError, match=rf"{place}: .*found the type \S*\.?mkdir; nothing else is loaded"):
        if place.startswith("entity"):
            inputs.read_counts(str(tmp_path), 1)
        else:
            open_checkpoint(str(tmp_path)).read_embeddings("user", 0)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    "content",
    [
        *(torch.ones(2, 2), (torch.ones(2), None), (torch.ones(2, 2), None, 3)),
        *((torch.ones(2, 2, dtype=int), None), 7),
        *((torch.ones(2, 2), state) for state in ({"state": {0: 5}}, {"state": {}, "param_groups": [[]]})),
    ],
)
def test_not_a_pair(tmp_path: Path, content: Any) -> None:
    torch.save(content, tmp_path / "user_1.pt")
    with pytest.raises(FormatError, match=r"user_1\.pt: expected"):
        open_checkpoint(str(tmp_path)).read_optimizer_state("user", 0)


def test_views_and_strides_are_read(tmp_path: Path) -> None:
    wide = torch.from_numpy(ROWS)
    for content in ((wide, {"view": wide[1:3]}), (wide.t().contiguous().t(), None), (wide.half(), None)):
        for as_zip in (True, False):
            torch.save(content, tmp_path / "user_1.pt", _use_new_zipfile_serialization=as_zip)
            np.testing.assert_array_equal(_rows(tmp_path, "user", 0), ROWS)


def test_written_files_open_in_a_torch_of_2019(tmp_path: Path) -> None:
    """The three pickles at the front, of protocol 2, as torch wrote them before it wrote zips."""
    save(str(tmp_path / "user_1.pt.1"), (NewTorchTensor((6, 2), [ROWS[:4], ROWS[4:]]), None))
    stream = io.BytesIO((tmp_path / "user_1.pt.1").read_bytes())
    assert stream.getvalue()[:2] == b"\x80\x02"
    assert pickle.load(stream) == torch.serialization.MAGIC_NUMBER
    assert pickle.load(stream) == 1001
    assert pickle.load(stream)["little_endian"] is True
    with pytest.raises(FormatError, match="expected 14 elements, found 12"):
        save(str(tmp_path / "user_1.pt.2"), (NewTorchTensor((7, 2), [ROWS]), None))
    assert not (tmp_path / "user_1.pt.2").exists()


def test_commit_deletes_older_embeddings_and_keeps_metadata(tmp_path: Path) -> None:
    for version in (1, 2):
        for name in ("user_1", "METADATA_1"):
            (tmp_path / f"{name}.pt.{version}").touch()
        legacy.commit(str(tmp_path), version)
    names = {each.name for each in tmp_path.iterdir()}
    assert names == {"CHECKPOINT_VERSION", "user_1.pt.2", "METADATA_1.pt.1", "METADATA_1.pt.2"}
    assert (tmp_path / "CHECKPOINT_VERSION").read_bytes() == b"2"


def _convert_with(changes: dict[str, Any], folder: Path) -> None:
    """Convert a checkpoint with a changed configuration of early 2019 from `old` to `new`."""
    kept = ("model", "metric", "entities", "relations", "numDynamicRels")
    config = {key: JANUARY[key] for key in kept} | {"partitionOrder": "inside_out", "bias": 1} | changes
    old = folder / "old"
    old.mkdir()
    _save_as_2019((torch.from_numpy(ROWS), None), old / "user_1.pt.3")
    _save_as_2019((config, 3, 0, {}, None), old / "METADATA_1.pt.3")
    (old / "CHECKPOINT_VERSION").write_text("3")
    run_command("convert", old, folder / "new", "--format", "pbg")


def test_the_configuration_of_january_is_converted_to_keys_of_today(tmp_path: Path) -> None:
    _convert_with({}, tmp_path)
    assert v1.read_config(str(tmp_path / "new")) == {
        **{"comparator": "dot", "bucket_order": "inside_out", "bias": True, "disable_lhs_negs": True},
        "entities": {"user": {"num_partitions": 1, "featurized": False}},
        "relations": [{"name": "r", "lhs": "user", "rhs": "user", "operator": "affine", "all_negs": True}],
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shoeSize": 4}, "shoe_size: unknown key"),
        ({"metric": "manhattan"}, "comparator: .*'manhattan'"),
        ({"entities": {"user": {"numPartitions": 1, "colour": 3}}}, "entities.user.colour: unknown key"),
    ],
)
def test_a_configuration_without_a_counterpart_is_not_converted(tmp_path, changes, message):
    with pytest.raises(FormatError, match=rf"METADATA_1\.pt\.3: .*version 1; change it(?s:.*){message}"):
        _convert_with(changes, tmp_path)
    assert not (tmp_path / "new").exists()


def _write_input(root: Path, base: int, counts: dict[str, list[int]]) -> list[tuple[np.ndarray, ...]]:
    """Legacy input with every bucket of two partitions; the edges, counted from 0."""
    rng = np.random.default_rng(base)
    for name, each in counts.items():
        for partition, count in enumerate(each):
            save(inputs.count_uri(str(root / "entities"), name, partition + base), count)
    save(str(root / "entities" / inputs.RELATION_COUNT), 3)
    edges = []
    for lhs, rhs in product(range(2), repeat=2):
        limits = (counts["user"][lhs], 3, max(each[rhs % len(each)] for each in counts.values()))
        edges.append(tuple(rng.integers(0, limit, 50) for limit in limits))
        content = [edge_buckets.Edges(*edges[-1])]
        inputs.write_bucket(str(root / "edges"), Bucket(lhs, rhs), base, 50, content)
    return edges


def _convert_input(target: Path, entities: Path, edges: Path, target_format: str) -> None:
    places = "--entity-path", entities, "--edge-path", edges
    run_command("convert-input", target, *places, "--format", target_format)


def test_input_goes_there_and_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """v1 -> legacy -> v1 by the command: the same bytes; weights, which legacy files have not, are said."""
    _write_input(tmp_path, 1, {"user": [7, 9], "word": [40]})
    first, second, third = (tmp_path / name for name in ("a", "b", "c"))
    _convert_input(first, tmp_path / "entities", tmp_path / "edges", "pbg")
    _convert_input(second, first / "entities", first / "edges" / "edges", "pbg-legacy")
    _convert_input(third, second / "entities", second / "edges" / "edges", "pbg")
    for path in first.rglob("*.*"):
        assert path.read_bytes() == (third / path.relative_to(first)).read_bytes()
    assert (second / "edges" / "edges" / "edges_1_1.h5").exists()
    assert not capsys.readouterr().out

    weighted = edge_buckets.Edges(*np.zeros((3, 1), np.int64), np.ones(1, np.float32))
    edge_buckets.write_bucket(str(first / "edges" / "edges"), Bucket(0, 0), weighted)
    (first / "edges" / "edges" / storage.CHECKSUMS).unlink()
    _convert_input(tmp_path / "d", first / "entities", first / "edges" / "edges", "pbg-legacy")
    assert capsys.readouterr().out == "not kept: weights of edges\n"

    (tmp_path / "mine" / "edges" / "edges").mkdir(parents=True)
    (tmp_path / "mine" / "edges" / "edges" / "roads.csv").write_text("mine")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    for target, message in ((tmp_path, "is read; "), (tmp_path / "mine", r"roads\.csv, and is replaced")):
        for target_format in ("pbg", "pbg-legacy"):
            with pytest.raises(ConfigError, match=message):
                _convert_input(target, tmp_path / "entities", tmp_path / "edges", target_format)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*")} == before


def test_input_of_base_0_becomes_v1s(tmp_path: Path) -> None:
    """Again, if the source has changed; tests/train/run/test_legacy.py trains on input of base 1."""
    counts = {"user": [7, 9], "word": [4]}
    expected = _write_input(tmp_path, 0, counts)
    with h5py.File(tmp_path / "edges" / "edges_0_1.h5") as hdf5:
        assert "format_version" not in hdf5.attrs
        np.testing.assert_array_equal(hdf5["lhs"][...], expected[1][0])
    arguments = (str(tmp_path / "entities"), [str(tmp_path / "edges")], str(tmp_path / "adopted"), "auto")
    entities, (edges,) = conversion.convert_inputs(*arguments)
    assert entity_counts.list_counts(entities) == counts
    assert entity_counts.read_relation_count(entities) == 3
    for number, columns in enumerate(expected):
        read = edge_buckets.read_bucket(edges, Bucket(*divmod(number, 2)))
        for values, wanted in zip((read.lhs, read.rel, read.rhs), columns, strict=True):
            np.testing.assert_array_equal(values, wanted)
    inputs.write_bucket(str(tmp_path / "edges"), Bucket(0, 0), 0, 0, [])
    conversion.convert_inputs(*arguments)
    assert edge_buckets.count_edges(edges, Bucket(0, 0)) == 0


def test_a_wrong_base_shows(tmp_path: Path) -> None:
    """Forced to the wrong base: an index below it, an index beyond the counts, or files that lack."""
    _write_input(tmp_path, 1, {"user": [7, 9]})
    entities, edges = str(tmp_path / "entities"), str(tmp_path / "edges")
    with pytest.raises(FormatError, match="partitions from 0 on are not complete"):
        conversion.convert_inputs(entities, [edges], str(tmp_path / "a"), 0)
    with h5py.File(tmp_path / "edges" / "edges_1_1.h5", "a") as hdf5:
        hdf5["lhs"][3] = 0
    with pytest.raises(FormatError, match=r"lhs\[3\] is 0; expected 1 or more: is index_base 1 right"):
        conversion.convert_inputs(entities, [edges], str(tmp_path / "b"), "auto")
    with h5py.File(tmp_path / "edges" / "edges_1_1.h5", "a") as hdf5:
        hdf5["lhs"][3] = 8  # of 7 rows, from 1
    with pytest.raises(FormatError, match=r"edges_1_1\.h5: lhs\[3\] is 7; expected less than 7"):
        conversion.convert_inputs(entities, [edges], str(tmp_path / "c"), "auto")
    assert not (tmp_path / "c" / "edges").exists() or not any((tmp_path / "c" / "edges").iterdir())

    (tmp_path / "edges" / "edges_1_1.h5").rename(tmp_path / "edges" / "edges_0_0.h5")
    with pytest.raises(FormatError, match=r"numbers start differently: .*entities from 1; .*edges from 0"):
        conversion.convert_inputs(entities, [edges], str(tmp_path / "d"), "auto")
    (tmp_path / "edges" / "edges_0_0.h5").unlink()
    with pytest.raises(FormatError, match=r"expected edges_0_0\.h5 or edges_1_1\.h5, found neither"):
        conversion.convert_inputs(entities, [edges], str(tmp_path / "e"), "auto")


def test_damaged_and_lost_counts(tmp_path: Path) -> None:
    torch.save(7.5, tmp_path / "entity_count_user_1.pt")
    with pytest.raises(FormatError, match=r"entity_count_user_1\.pt: expected one integer .* found 7\.5"):
        inputs.read_counts(str(tmp_path), 1)
    with pytest.raises(FormatError, match=r"expected entity_count_.*found none"):
        inputs.read_counts(str(tmp_path / "nowhere"), 1)
    with pytest.raises(FormatError, match="no such bucket"):
        list(inputs.iter_edges(str(tmp_path), Bucket(0, 0), 1, 10))
    for number in (1, 3):
        torch.save(2, tmp_path / f"entity_count_user_{number}.pt")
    (tmp_path / "edges").mkdir()
    with pytest.raises(FormatError, match=r"entity_count_user_2\.pt \(partition 2 of 3 .* is lost"):
        inputs.find_index_base(str(tmp_path), [str(tmp_path / "edges")], "auto")
