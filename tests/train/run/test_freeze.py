"""`train.freeze`: types and relations that do not move, to the last bit, with every engine."""

import shutil

import pytest
import torch

from graphmill.checkpoints import pbg
from graphmill.config.sections.train import TrainConfig
from graphmill.errors import ConfigError
from tests.train.graphs import make_config, random_edges, relation, saved, write_graph
from train import job

TYPES = {"user": {"num_partitions": 1}, "item": {"num_partitions": 1}}
QUERIES = ({"engine": "plain", "optimizer": "adagrad"}, {"all_negs": True, "max_norm": 0.5})
# A configuration of each engine; each epoch is one step.
ENGINES = {
    "compiled": ({"engine": "auto"}, {"max_norm": 0.5, "global_emb": True}),
    "plain": ({"engine": "plain"}, {"max_norm": 0.5, "global_emb": True, "comparator": "cos"}),
    "plain, two-sided": ({"engine": "plain", "reciprocal_relations": True}, {"global_emb": False}),
    "grouped, rhs": (QUERIES[0], QUERIES[1] | {"disable_lhs_negs": True}),
    "grouped, lhs": (QUERIES[0], QUERIES[1] | {"disable_rhs_negs": True}),
    "fused": ({"engine": "fused"}, {"global_emb": False}),
    "dynamic": ({"engine": "auto"}, {"global_emb": False, "dynamic_relations": True}),
    "fused, dynamic": ({"engine": "fused"}, {"global_emb": False, "dynamic_relations": True}),
}


def configured(root, engine, freeze=(), **more):
    train, settings = ENGINES[engine]
    settings = dict(settings)
    all_negs = settings.pop("all_negs", False)
    relations = [relation(name="likes", lhs="user", rhs="item", all_negs=all_negs)]
    return make_config(
        root,
        **{"entities": TYPES, "relations": relations, "num_epochs": 1, "batch_size": 1000, "init_scale": 1.0},
        **({"regularization_coef": 0.01} | settings | more),
        train=train | {"freeze": list(freeze)},
    )


def write(config, rng, **counts):
    edges = random_edges(config, counts, rng, 300)
    if config.dynamic_relations:
        edges[:, 1] = rng.integers(2, size=300)
    write_graph(config, counts, edges)


def state_of(config):
    """All rows, sums, parameters, and their optimizer's states, by type and by relation."""
    every = saved(config)
    found = {name: [every[key] for key in every if key[0] == name] for name in config.entities}
    keys = [key for key in every if "operators" in key]
    keys += [key for name in config.entities if (key := f"global_embs.emb_{name}") in every]
    found["likes"] = []
    for number, key in enumerate(keys):
        owner = key.removeprefix("global_embs.emb_") if "global" in key else "likes"
        found[owner] += [every[key], every[number, "sum"], torch.tensor(float(every[number, "step"]))]
    assert (len(keys), "sum") not in every
    return found


def same(ours, theirs):
    return all(a.numpy().tobytes() == b.numpy().tobytes() for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_frozen_stays_and_the_rest_moves_as_ever(tmp_path, rng, engine):
    """One step from a trained checkpoint: parts that are not frozen move as without `freeze`."""
    first = configured(tmp_path / "first", engine)
    write(first, rng, user=30, item=20)
    job.train(first)
    before = state_of(first)

    def continued(*freeze):
        config = configured(
            tmp_path / ("-".join(freeze) or "free"), engine, freeze, init_path=first.checkpoint_path
        )
        for folder in ("entities", "edges"):
            shutil.copytree(tmp_path / "first" / folder, f"{config.output}/{folder}")
        figures = job.train(config)
        expected = engine.partition(",")[0]
        step = {"grouped": "plain", "dynamic": "compiled"}.get(expected, expected)
        assert [*figures["plan"]["steps"].values()] == [step]
        return state_of(config)

    free = continued()
    for freeze in (("item",), ("user", "likes")):
        after = continued(*freeze)
        for name in ("user", "item", "likes"):
            assert same(after[name], (before if name in freeze else free)[name]), (freeze, name)
            assert not same(before[name], free[name])


@pytest.mark.parametrize("engine", ["compiled", "plain"])
def test_with_partitions_and_types_on_both_sides(tmp_path, rng, engine):
    """A frozen type may be on both sides of one relation; a lower max_norm does not shorten its rows."""
    types = {name: {"num_partitions": 2} for name in ("user", "item")}
    relations = [
        relation("translation", name="knows", lhs="user", rhs="user"),
        relation(name="likes", lhs="user", rhs="item"),
    ]
    first = make_config(tmp_path / "first", entities=types, relations=relations, init_scale=1.0)
    write(first, rng, user=20, item=20)
    job.train(first)
    update = {"checkpoint_path": str(tmp_path / "then"), "init_path": first.checkpoint_path, "max_norm": 0.1}
    section = TrainConfig(freeze=["user", "knows"], engine="auto" if engine == "compiled" else "plain")
    config = first.model_copy(update=update).with_section(section)
    job.train(config)
    for part in range(2):
        rows = [pbg.read_embeddings(each.checkpoint_path, "user", part, 2)[0] for each in (first, config)]
        assert rows[0].tobytes() == rows[1].tobytes()
        rows = [pbg.read_embeddings(each.checkpoint_path, "item", part, 2)[0] for each in (first, config)]
        assert not (rows[0] == rows[1]).any()
    before, after = (pbg.read_model(each.checkpoint_path, 2)[0] for each in (first, config))
    assert torch.equal(before["rhs_operators.0.translation"], after["rhs_operators.0.translation"])
    assert not torch.equal(before["rhs_operators.1.diagonal"], after["rhs_operators.1.diagonal"])


def test_several_workers_average_nothing_that_is_frozen(tmp_path, rng, client):
    """-0.0 in a row would become 0.0 by a weighted mean with itself."""
    types = {"user": {"num_partitions": 4}, "city": {"num_partitions": 1}}
    relations = [
        {"name": "knows", "lhs": "user", "rhs": "user", "operator": "translation"},
        {"name": "lives", "lhs": "user", "rhs": "city", "operator": "diagonal"},
    ]
    first = make_config(tmp_path / "first", entities=types, relations=relations, global_emb=True)
    write(first, rng, user=40, city=4)
    job.train(first)
    rows, state = pbg.read_embeddings(first.checkpoint_path, "city", 0, 2)
    rows[0] = -0.0
    shutil.copytree(first.checkpoint_path, tmp_path / "changed")
    path = str(tmp_path / "changed")
    (tmp_path / "changed/checksums.v2.xxh128").unlink()
    (tmp_path / "changed/embeddings_city_0.v2.h5").unlink()
    pbg.write_embeddings(path, "city", 0, 2, rows, state, first.pbg(), None)
    section = TrainConfig(freeze=["city", "knows"], num_workers=2)
    update = {"checkpoint_path": str(tmp_path / "then"), "init_path": path}
    config = first.model_copy(update=update).with_section(section)
    figures = job.run(config, client)
    after, sums = pbg.read_embeddings(config.checkpoint_path, "city", 0, figures["version"])
    assert after.tobytes() == rows.tobytes()
    assert torch.equal(sums["state"][0]["sum"], state["state"][0]["sum"])
    before, then = (pbg.read_model(each, 2)[0] for each in (path, config.checkpoint_path))
    for key, value in before.items():
        frozen = key in ("rhs_operators.0.translation", "global_embs.emb_city")
        assert torch.equal(value, then[key]) == frozen, key


@pytest.mark.parametrize(
    ("freeze", "message"),
    [
        (["usre"], r"train\.freeze\[0\]: no entity type or relation 'usre'; did you mean 'user'\?"),
        (["user", "item", "likes"], "nothing is left to train"),
    ],
)
def test_names_are_checked_before_anything_starts(tmp_path, freeze, message):
    with pytest.raises(ConfigError, match=message):
        job.check(configured(tmp_path, "plain", freeze))


def test_a_type_from_nowhere_is_told_of(tmp_path, rng, caplog):
    config = configured(tmp_path, "plain", ["item"])
    write(config, rng, user=30, item=20)
    caplog.set_level("WARNING", "graphmill")
    job.warn_of_drawn(config)
    assert "train.freeze: item: there is no init_path, so the vectors stay as they are drawn" in caplog.text
    assert config.train.result_settings()["freeze"] == ["item"]
    assert "freeze" not in configured(tmp_path, "plain").train.result_settings()  # as in older checkpoints
