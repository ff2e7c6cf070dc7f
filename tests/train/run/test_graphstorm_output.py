"""The trainer's output in GraphStorm's layouts, read by torch alone."""

import json

import numpy as np
import pyarrow as pa
import pytest
import torch

from graphmill.checkpoints import pbg
from graphmill.errors import FormatError
from graphmill.formats import entity_index
from graphmill.model.parameters import global_key
from tests.train.graphs import changed, make_config, random_triples, write_graph
from train import job
from train.run import graphstorm_output

COUNTS = {"user": 23, "item": 9}


@pytest.fixture
def config(tmp_path, rng):
    config = make_config(
        tmp_path / "run",
        num_epochs=1,
        entities={"user": {"num_partitions": 3}, "item": {"num_partitions": 1}},
        relations=[
            {"name": "likes_it", "lhs": "user", "rhs": "item", "operator": "translation"},
            {"name": "knows", "lhs": "user", "rhs": "user", "operator": "diagonal"},
        ],
    )
    liked, known = random_triples(rng, 23, 1, 9, 60), random_triples(rng, 23, 1, 23, 60)
    known[:, 1] = 1
    triples = np.concatenate([liked, known])
    write_graph(config, COUNTS, triples)
    for name, entity in config.entities.items():
        for part in range(entity.num_partitions):
            ids = [f"{name}:{number}" for number in range(part, COUNTS[name], entity.num_partitions)]
            with entity_index.new_part(config.entity_path, name, part) as writer:
                writer.append(pa.array(ids))
    return config


def load(path):
    return torch.load(path, weights_only=True)


def global_rows(config, entity_type):
    """What represents each node, by integer id, [N, D]."""
    version = pbg.read_version(config.checkpoint_path)
    rows = [
        pbg.read_embeddings(config.checkpoint_path, entity_type, part, version)[0]
        for part in range(config.entities[entity_type].num_partitions)
    ]
    parameters = pbg.read_parameters(config.checkpoint_path, version)
    return np.concatenate(rows) + parameters[global_key(entity_type)]


@pytest.mark.slow
def test_embeddings_and_model_after_training(config, client, tmp_path):
    paths = {"save_embed_path": str(tmp_path / "emb"), "save_model_path": str(tmp_path / "model")}
    saving = changed(config, train=paths)
    job.run(saving, client)
    assert json.loads((tmp_path / "emb/emb_info.json").read_text()) == {
        "format": "pytorch",
        "emb_name": ["user", "item"],
        "world_size": 3,
        "emb_dim": {"user": 8, "item": 8},
    }
    for name, count in COUNTS.items():
        embed = torch.cat([load(tmp_path / f"emb/{name}/embed-{rank:05d}.pt") for rank in range(3)])
        nids = torch.cat([load(tmp_path / f"emb/{name}/embed_nids-{rank:05d}.pt") for rank in range(3)])
        assert nids.tolist() == list(range(count))
        np.testing.assert_array_equal(embed.numpy(), global_rows(config, name))
    folder = tmp_path / "model/epoch-0"
    version = pbg.read_version(config.checkpoint_path)
    assert load(folder / "model.bin") == {"node_embed": {}}  # two formulas: no decoder has both
    assert load(folder / "optimizers.bin") == {}
    shares = [load(folder / f"user/sparse_emb_{rank:05d}.pt") for rank in range(3)]
    assert [len(each) for each in shares] == [8, 8, 7]
    np.testing.assert_array_equal(torch.cat(shares).numpy(), global_rows(config, "user"))
    # Asked for later, or elsewhere, it is written without training anew; files of more ranks are gone.
    (tmp_path / "emb/user/embed-00009.pt").touch()
    assert job.fingerprint(saving) != job.fingerprint(config)
    assert job.run(saving, client)["first_version"] == version
    assert not (tmp_path / "emb/user/embed-00009.pt").exists()


def test_a_decoder_of_graphstorm(config, client, tmp_path):
    relations = [{**each.model_dump(), "operator": "diagonal"} for each in config.relations]
    model = {
        "relations": relations,
        "comparator": "dot",
        "train": {"save_model_path": str(tmp_path / "model")},
    }
    job.run(changed(config, **model), client)
    folder = tmp_path / "model/epoch-0"
    state = pbg.read_model(config.checkpoint_path, pbg.read_version(config.checkpoint_path))[0]
    expected = torch.stack([state[f"rhs_operators.{number}.diagonal"] for number in (1, 0)])
    assert load(folder / "model.bin")["decoder"]["_w_relation.weight"].tolist() == expected.tolist()
    assert json.loads((folder / "relation2id_map.json").read_text()) == {
        "('user', 'knows', 'user')": 0,
        "('user', 'likes_it', 'item')": 1,
    }


@pytest.mark.parametrize(("count", "num_partitions"), [(7, 3), (2, 3), (0, 2), (6, 3)])
def test_shares_of_a_saved_model(tmp_path, rng, count, num_partitions):
    config = make_config(tmp_path, entities={"node": {"num_partitions": num_partitions}})
    rows = rng.standard_normal((count, 8), np.float32)
    write_checkpoint(config, np.array_split(rows, num_partitions))
    graphstorm_output.save(config, None, str(tmp_path / "model"))
    folder = tmp_path / "model/epoch-0/node"
    found = [load(folder / f"sparse_emb_{rank:05d}.pt").numpy() for rank in range(num_partitions)]
    assert len(list(folder.iterdir())) == num_partitions
    share = -(-count // num_partitions)
    assert [len(each) for each in found[:-1]] == [
        min(share, max(count - share * r, 0)) for r in range(num_partitions - 1)
    ]
    np.testing.assert_array_equal(np.concatenate(found), rows)


def write_checkpoint(config, parts, parameters=None):
    """Commit version 1 with the rows of each partition."""
    at = pbg.Iteration(1, 0, 1, 0, "edges", 1, 0)
    for part, rows in enumerate(parts):
        pbg.write_embeddings(config.checkpoint_path, "node", part, 1, rows, None, {}, at)
    pbg.write_model(config.checkpoint_path, 1, parameters or {}, None, {}, at)
    pbg.commit(config.checkpoint_path, 1, preserve_epoch=None)


@pytest.mark.parametrize("layout", ["embed", "model"])
def test_numbers_that_are_not_finite_are_refused(tmp_path, layout):
    paths = (str(tmp_path / "emb"), None) if layout == "embed" else (None, str(tmp_path / "model"))
    config = make_config(tmp_path)
    damaged = np.ones((4, 8), np.float32)
    damaged[2, 3] = np.nan
    write_checkpoint(config, [damaged])
    with pytest.raises(FormatError, match="row 2: expected finite numbers, found nan"):
        graphstorm_output.save(config, *paths)
    parameters = {"global_embs.emb_node": torch.full((8,), torch.inf)}
    write_checkpoint(config, [np.ones((4, 8), np.float32)], parameters)
    with pytest.raises(FormatError, match="expected finite numbers, found inf"):
        graphstorm_output.save(config, *paths)
    assert not list(tmp_path.glob("emb/emb_info.json")) + list(tmp_path.glob("model/*"))
