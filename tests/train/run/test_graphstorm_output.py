"""The trainer's output in GraphStorm's layouts, read by torch alone, and its predictions by hand."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from graphmill import config as configuration
from graphmill.cli import exit_codes
from graphmill.errors import ConfigError, FormatError, NotFoundError
from graphmill.formats import entity_index, pbg_checkpoint
from tests.train.graphs import make_config, random_triples, write_graph
from train import job
from train.__main__ import command
from train.evaluation import predict
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


def changed(config, **settings):
    return configuration.from_mapping(config.model_dump() | settings)


def load(path):
    return torch.load(path, weights_only=True)


def global_rows(config, entity_type):
    """What represents each node, by integer id, [N, D]."""
    version = pbg_checkpoint.read_version(config.checkpoint_path)
    rows = [
        pbg_checkpoint.read_embeddings(config.checkpoint_path, entity_type, part, version)[0]
        for part in range(config.entities[entity_type].num_partitions)
    ]
    return np.concatenate(rows) + pbg_checkpoint.read_global_embedding(
        config.checkpoint_path, entity_type, version
    )


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
    version = pbg_checkpoint.read_version(config.checkpoint_path)
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
    state = pbg_checkpoint.read_model(
        config.checkpoint_path, pbg_checkpoint.read_version(config.checkpoint_path)
    )[0]
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
    at = pbg_checkpoint.Iteration(1, 0, 1, 0, "edges", 1, 0)
    for part, rows in enumerate(parts):
        pbg_checkpoint.write_embeddings(config.checkpoint_path, "node", part, 1, rows, None, {}, at)
    pbg_checkpoint.write_model(config.checkpoint_path, 1, parameters or {}, None, {}, at)
    pbg_checkpoint.commit(config.checkpoint_path, 1, preserve_epoch=None)


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


def test_scores_of_edges(config, client, tmp_path):
    job.run(config, client)
    split = "train"
    figures = predict.predict_edges(config, split, str(tmp_path / "pred"))
    assert figures == {"num_edges": 120}
    assert json.loads((tmp_path / "pred/result_info.json").read_text())["etypes"] == [
        ["user", "likes_it", "item"],
        ["user", "knows", "user"],
    ]
    version = pbg_checkpoint.read_version(config.checkpoint_path)
    state = pbg_checkpoint.read_model(config.checkpoint_path, version)[0]
    users, items = (torch.from_numpy(global_rows(config, name)) for name in ("user", "item"))
    expected = {
        "user_likes_it_item": (users, items + state["rhs_operators.0.translation"]),
        "user_knows_user": (users, users * state["rhs_operators.1.diagonal"]),
    }
    for folder, (lhs, rhs) in expected.items():
        for rank in range(9):
            place = tmp_path / "pred" / folder
            score, src, dst = (
                load(place / f"{stem}-{rank:05d}.pt") for stem in ("predict", "src_nids", "dst_nids")
            )
            torch.testing.assert_close(score, (lhs[src] * rhs[dst]).sum(1))


@pytest.mark.parametrize("num_gpus", [0, 1])
def test_neighbors(config, client, tmp_path, monkeypatch, num_gpus):
    job.run(config, client)
    if num_gpus:  # the same on a CPU, in blocks of a few rows
        monkeypatch.setattr(predict, "device_of", lambda num_gpus: torch.device("cpu"))
        monkeypatch.setattr(predict, "GPU_ROWS", 3)
        monkeypatch.setattr(predict, "GPU_BYTES", 5 * 4 * 8)
        config = config.model_copy(update={"num_gpus": num_gpus})
    predict.predict_neighbors(config, "user", 4, str(tmp_path / "near"))
    rows = torch.nn.functional.normalize(torch.from_numpy(global_rows(config, "user")))
    cosines = rows @ rows.T
    cosines.fill_diagonal_(-torch.inf)
    best = cosines.topk(4)
    place = tmp_path / "near/user_neighbor_user"
    stems = {
        stem: torch.cat([load(place / f"{stem}-{r:05d}.pt") for r in range(3)])
        for stem in ("predict", "src_nids", "dst_nids")
    }
    assert stems["src_nids"].tolist() == np.repeat(np.arange(23), 4).tolist()
    torch.testing.assert_close(stems["predict"].reshape(23, 4), best.values)
    assert stems["dst_nids"].reshape(23, 4).tolist() == best.indices.tolist()


@pytest.mark.slow
def test_labels(config, client, tmp_path):
    pytest.importorskip("sklearn")
    job.run(config, client)
    rows = global_rows(config, "user")
    by_nid = [f"user:{number}" for part in range(3) for number in range(part, 23, 3)]
    is_large = rows[:, 0] > np.median(rows[:, 0])
    table = pa.table(
        {"who": [*by_nid[:16], "nobody"], "what": [*np.where(is_large[:16], "large", "small"), "large"]}
    )
    pq.write_table(table, tmp_path / "labels.parquet")
    figures = predict.predict_labels(
        config, "user", str(tmp_path / "labels.parquet"), ("who", "what"), str(tmp_path / "pred")
    )
    assert figures["num_labelled"] == 16
    assert figures["labels"] == json.loads((tmp_path / "pred/labels.json").read_text()) == ["large", "small"]
    found = torch.cat([load(tmp_path / f"pred/user/predict-{rank:05d}.pt") for rank in range(3)])
    assert found.shape == (23, 2)
    torch.testing.assert_close(found.sum(1), torch.ones(23))
    right = (found[:16, 0] > 0.5).numpy() == is_large[:16]
    assert right.mean() == pytest.approx(figures["accuracy_on_labelled"])
    assert right.mean() > 0.6


def test_labels_of_a_csv_file_are_text(tmp_path):
    (tmp_path / "labels.csv").write_text("id,label\n007,01\n7,1\n1e3,true\nNA,null\nalice,\n")
    ids, labels = predict.read_labels(str(tmp_path / "labels.csv"), ("id", "label"))
    assert ids.to_pylist() == ["007", "7", "1e3", "NA"]
    assert labels == ["01", "1", "true", "null"]


@pytest.mark.slow
def test_the_command_and_its_errors(config, client, tmp_path, monkeypatch, capsys):
    with pytest.raises(NotFoundError, match="no checkpoint to predict with"):
        predict.predict_edges(config, "train", str(tmp_path / "pred"))
    job.run(config, client)
    with pytest.raises(ConfigError, match="--type nobody: expected one of user, item"):
        predict.predict_neighbors(config, "nobody", 2, str(tmp_path / "pred"))
    with pytest.raises(ConfigError, match="--neighbors 23: expected 1 to 22"):
        predict.predict_neighbors(config, "user", 23, str(tmp_path / "pred"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").touch()
    with pytest.raises(ConfigError, match="expected a new folder or one of predictions"):
        predict.predict_neighbors(config, "user", 2, str(tmp_path / "mine"))
    (tmp_path / "conf.yaml").write_text(json.dumps(config.model_dump(mode="json")))
    arguments = ["predict", "--conf", str(tmp_path / "conf.yaml"), "--master", "local[1]", "--output-dir"]
    both = [*arguments, str(tmp_path / "pred"), "--split", "train", "--neighbors", "2"]
    assert exit_codes.exit_code(lambda: command.main(both, standalone_mode=False)) == 2
    one = [*arguments, str(tmp_path / "pred"), "--neighbors", "2"]
    assert exit_codes.exit_code(lambda: command.main(one, standalone_mode=False)) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"num_nodes": 23, "num_edges": 46}
    assert (tmp_path / "pred/result_info.json").exists()
