"""GraphStorm's trained models: what is written, what is read, what is told as lost, what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from graphmill.checkpoints import ModelState, open_checkpoint, writer_of
from graphmill.checkpoints.graphstorm import saved_models
from graphmill.convert import convert
from graphmill.errors import FormatError
from tests.graphmill.checkpoints.samples import MemoryCheckpoint

D = 4
TYPES = [("user", "likes", "item"), ("item", "of: a/b", "item")]


def source_of(*, operator="diagonal", parameter="diagonal", width=D, **config):
    """Two static relations, one of them with parameters, and global embeddings."""
    rng = np.random.default_rng(0)
    counts = {"item": [5], "user": [4, 3]}
    tables = {
        name: [(rng.standard_normal((each, D), np.float32), None) for each in parts]
        for name, parts in counts.items()
    }
    relations = [
        {"name": name, "lhs": lhs, "rhs": rhs, "operator": each}
        for (lhs, name, rhs), each in zip(TYPES, (operator, "none"), strict=True)
    ]
    entities = {name: {"num_partitions": len(parts)} for name, parts in counts.items()}
    parameters = {f"rhs_operators.0.{parameter}": torch.linspace(-3, 3, width)}
    parameters |= {f"global_embs.emb_{name}": torch.full((D,), 0.5) for name in counts}
    settings = {"entities": entities, "relations": relations, "dimension": D, "comparator": "dot"} | config
    return MemoryCheckpoint(tables, ModelState(parameters, None), settings, None)


def write(folder: Path, source: MemoryCheckpoint) -> list[str]:
    return writer_of("graphstorm-model")(source, str(folder))


@pytest.mark.parametrize(
    ("operator", "parameter", "comparator", "width", "decoder"),
    [
        ("diagonal", "diagonal", "dot", D, "distmult"),
        ("translation", "translation", "l2", D, "transe_l2"),
        ("rotation", "angle", "l2", D // 2, "rotate"),
    ],
)
def test_there_and_back(tmp_path, operator, parameter, comparator, width, decoder):
    source = source_of(operator=operator, parameter=parameter, width=width, comparator=comparator)
    write(tmp_path / "model", source)
    done = convert(str(tmp_path / "model"), str(tmp_path / "pbg"), "pbg")
    assert done.not_kept == []
    config, model = done.target.config, done.target.read_model()
    assert config["comparator"] == comparator
    assert [(each["lhs"], each["name"], each["rhs"]) for each in config["relations"]] == sorted(TYPES)
    assert {each["operator"] for each in config["relations"]} == {operator}
    found = model.parameters[f"rhs_operators.1.{parameter}"]
    torch.testing.assert_close(found, torch.linspace(-3, 3, width))
    settings = yaml.safe_load((tmp_path / "model" / saved_models.CONFIG).read_text())["gsf"]
    assert settings["link_prediction"]["lp_decoder_type"] == decoder


@pytest.mark.parametrize(("comparator", "normalizer"), [("dot", None), ("cos", "l2_norm")])
def test_no_operators_are_the_dot_product(tmp_path: Path, comparator: str, normalizer: str | None) -> None:
    source = source_of(operator="none", comparator=comparator)
    source.read_model().parameters.pop("rhs_operators.0.diagonal")
    write(tmp_path, source)
    assert torch.load(tmp_path / "model.bin", weights_only=True) == {"node_embed": {}}
    task = yaml.safe_load((tmp_path / saved_models.CONFIG).read_text())["gsf"]["link_prediction"]
    assert (task["lp_decoder_type"], task.get("lp_embed_normalizer")) == ("dot_product", normalizer)
    config = open_checkpoint(str(tmp_path)).config
    assert (config["comparator"], config["global_emb"]) == (comparator, False)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"comparator": "cos"}, "the operator diagonal with the comparator cos"),
        ({"bias": True}, "the operator diagonal with the comparator dot and bias"),
        ({"operator": "complex_diagonal"}, "the operator complex_diagonal"),
        ({"operator": "linear"}, "the operator linear"),
        ({"operator": "translation"}, "the operator translation with the comparator dot"),
        ({"dynamic_relations": True}, "leaves them to the edges"),
        ({"relations": []}, "lists no relations"),
    ],
)
def test_what_no_decoder_computes_is_told(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    lost = write(tmp_path, source_of(**changed))
    assert any(message in each for each in lost)
    assert any(each.startswith("1 parameters of relations: rhs_operators.0") for each in lost)
    assert "decoder" not in torch.load(tmp_path / "model.bin", weights_only=True)
    assert open_checkpoint(str(tmp_path)).config is None


def test_files_one_folder_up_and_layers_of_a_network(tmp_path: Path) -> None:
    """GraphStorm saves its YAML at save_model_path, and the user copies the other two there."""
    model = tmp_path / "epoch-0"
    write(model, source_of())
    for name in (saved_models.CONFIG, saved_models.RELATIONS):
        (model / name).rename(tmp_path / name)
    torch.save({"user": torch.tensor([6, 5, 4, 3, 2, 1, 0])}, tmp_path / saved_models.NODE_MAPPING)
    found = open_checkpoint(str(model))
    assert found.config is not None
    stored = np.concatenate([rows for rows, _ in source_of().tables["user"]]) + np.float32(0.5)
    np.testing.assert_array_equal(found.read_embeddings("user", 0), stored[::-1])
    states = torch.load(model / "model.bin", weights_only=True) | {"gnn": {"h.weight": torch.ones(2)}}
    torch.save(states, model / "model.bin")
    found = open_checkpoint(str(model))  # the layers are told, and the decoder is left out
    assert (found.config, found.unread) == (None, ["decoder._w_relation.weight", "gnn.h.weight"])


def test_initial_values_without_a_model(tmp_path: Path) -> None:
    """A user makes files of embeddings alone, as version 0; of a later one the model was lost."""
    writer_of("pbg")(source_of(), str(tmp_path / "pbg"))
    (tmp_path / "pbg/model.v7.h5").unlink()
    with pytest.raises(FormatError, match=r"model\.v7\.h5: expected the parameters of relations, found no"):
        convert(str(tmp_path / "pbg"), str(tmp_path / "model"), "graphstorm-model")
    for path in (tmp_path / "pbg").glob("embeddings_*"):
        path.rename(path.with_name(path.name.replace(".v7.", ".v0.")))
    (tmp_path / "pbg/checkpoint_version.txt").write_text("0")
    done = convert(str(tmp_path / "pbg"), str(tmp_path / "model"), "graphstorm-model")
    assert "a decoder: the checkpoint lacks rhs_operators.1.diagonal" in done.not_kept
    assert done.target.counts == {"item": [5], "user": [7]}


PART = "user/sparse_emb_00001.pt"


def edit_settings(folder: Path, **task: Any) -> None:
    path = folder / saved_models.CONFIG
    content = yaml.safe_load(path.read_text())
    content["gsf"]["link_prediction"] |= task
    path.write_text(yaml.safe_dump(content))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda at: (at / saved_models.CONFIG).unlink(), f"expected {saved_models.CONFIG} beside"),
        (lambda at: (at / saved_models.RELATIONS).unlink(), f"expected {saved_models.RELATIONS} beside"),
        (lambda at: edit_settings(at, lp_decoder_type="transe_l1"), "decoder 'transe_l1' has no op"),
        (lambda at: edit_settings(at, lp_decoder_type="rotate"), r"shape \(2, 2\).*found \(2, 4\)"),
        (lambda at: edit_settings(at, lp_decoder_type="dot_product"), "which does not fit model.bin"),
        (lambda at: edit_settings(at, lp_embed_normalizer="l2_norm"), "lp_embed_normalizer has no equal"),
        (lambda at: edit_settings(at, lp_loss_func="contrastive"), "lp_embed_normalizer has no equal"),
        (lambda at: edit_settings(at, gamma="much"), "gamma: expected a number"),
        (lambda at: (at / saved_models.RELATIONS).write_text('{"x": 0, "y": 1}'), r"text of \(source type"),
        (lambda at: (at / saved_models.RELATIONS).write_text('{"x": 1}'), "the numbers from 0 on"),
        (lambda at: torch.save({"decoder": 1}, at / "model.bin"), "parameters by part and name"),
        (lambda at: (at / PART).rename(at / "user/sparse_emb_99999999.pt"), rf"{PART}: expected the file of"),
        (lambda at: torch.save({"user": torch.arange(3)}, at / saved_models.NODE_MAPPING), "3 rows, as node"),
        (lambda at: torch.save(torch.ones(6, 9).int(), at / PART), rf"{PART}: expected floats \[n, D\]"),
        (lambda at: torch.save(torch.ones(7, 9), at / "item/sparse_emb_00001.pt"), "files differ in dimens"),
    ],
)
def test_damage(tmp_path: Path, damage: Any, message: str) -> None:
    write(tmp_path / "model", source_of())
    damage(tmp_path / "model")
    with pytest.raises(FormatError, match=message):
        convert(str(tmp_path / "model"), str(tmp_path / "pbg"), "pbg")
    assert not (tmp_path / "pbg").exists()
