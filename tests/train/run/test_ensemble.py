"""Ensembles: models that are trained apart, and one checkpoint whose scores are the sums of theirs."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import graphmill
from graphmill import config as configuration
from graphmill.ask.evaluate import evaluate
from graphmill.ask.model import Model
from graphmill.checkpoints import pbg
from graphmill.checkpoints.pbg.checkpoint import PbgCheckpoint
from graphmill.checkpoints.states import sums_of, table_sums
from graphmill.config import from_mapping
from graphmill.errors import ConfigError, FormatError
from graphmill.model.operators import OPERATORS
from graphmill.vocab import Side
from tests.contents import contents
from tests.finished import of_triples
from tests.train.graphs import (
    assert_checksums,
    changed,
    embeddings,
    make_config,
    node_graph,
    random_triples,
    relation,
    with_train,
    write_edges,
)
from train import job
from train.run import joined
from train.run.ensemble import is_joined, members_of

NUM_NODES = 41


@pytest.fixture
def config(tmp_path, rng):
    relations, train = [relation("complex_diagonal")], {"ensemble": 3}
    return node_graph(tmp_path, rng, NUM_NODES, 200, num_partitions=2, relations=relations, train=train)


@st.composite
def ensembles(draw):
    """Configurations of any operators and kinds of relations that an ensemble may have."""
    operators = draw(st.lists(st.sampled_from(sorted(OPERATORS)), min_size=1, max_size=2))
    dynamic = len(operators) == 1 and draw(st.booleans())
    has_parts = any(OPERATORS[name].parts > 1 for name in operators)
    dimension = draw(st.sampled_from([2, 6] if has_parts else [1, 2, 5]))
    return make_config(
        "unused",
        entities={"user": {"num_partitions": 1}, "film": {"num_partitions": 1, "dimension": dimension}},
        relations=[relation(each, name=f"r{n}", lhs="user", rhs="film") for n, each in enumerate(operators)],
        dimension=dimension,
        dynamic_relations=dynamic,
        global_emb=not dynamic and draw(st.booleans()),
        train={"ensemble": draw(st.integers(2, 4)), "reciprocal_relations": draw(st.booleans())},
    )


def filled(config, num_relations, generator):
    """A model with random parameters."""
    model = Model(config, num_relations)
    drawn = {key: torch.randn(each.shape, generator=generator) for key, each in model.parameters.items()}
    model.load_state(drawn)
    return model


def sums_of_rows(config, width):
    """The optimizer's sums of the nodes of partition 1."""
    state = PbgCheckpoint(config.checkpoint_path).read_optimizer_state("node", 1)
    return table_sums(state, (20, width), "")


def scores(model, side, users, films, rel):
    """Scores of all users against all films, by every relation, for answers on `side`."""
    queries, candidates = (films, users) if side is Side.LHS else (users, films)
    return [
        model.matrix_scores(
            model.query(number, side, queries, rel), model.candidates(number, side, candidates), side
        )
        for number in range(len(model.config.relations))
    ]


@given(ensembles(), st.integers(0, 99))
def test_joined_scores_are_the_sums_of_the_members_scores(config, seed):
    generator = torch.Generator().manual_seed(seed)
    num_relations = 3 if config.dynamic_relations else None
    rel = torch.tensor([0, 2, 1, 2]) if config.dynamic_relations else None
    models = [filled(member, num_relations, generator) for member in members_of(config)]
    tables = [torch.randn(2, 4, config.dimension, generator=generator) for _ in models]
    whole = Model(config, num_relations)
    parts = [each.parameters for each in models]
    whole.load_state({key: joined.joined(config, key, [each[key] for each in parts]) for key in parts[0]})
    order = joined.order(config, config.dimension)
    if not any(OPERATORS[each.operator].parts > 1 for each in config.relations):
        assert order.tolist() == list(range(len(order)))  # members' vectors stay whole
    together = torch.cat(tables, -1)[..., order]
    for side in Side:
        found = scores(whole, side, *together, rel)
        of_members = [scores(model, side, *table, rel) for model, table in zip(models, tables, strict=True)]
        for each, expected in zip(found, map(sum, zip(*of_members, strict=True)), strict=True):
            torch.testing.assert_close(each, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_run_trains_the_members_and_joins_them(config, near_client, tmp_path):
    """More epochs continue the members and join them again; another number of members is another model."""
    figures = job.run(config, near_client)
    members = members_of(config)
    seeds = [each["seed"] for each in figures["members"]]
    assert seeds[0] == config.seed
    assert len(set(seeds)) == 3
    assert json.dumps(figures)
    assert (figures["version"], figures["num_edges"]) == (1, 3 * 2 * 200)
    assert figures["num_parameters"] == 3 * (NUM_NODES * 8 + 2 * 4 + 8)
    # member 0 is the run without an ensemble
    alone = with_train(changed(config, checkpoint_path=str(tmp_path / "alone")), ensemble=1)
    job.claim_checkpoint(alone)
    job.train(alone)
    tables = [embeddings(member, "node", NUM_NODES) for member in members]
    assert torch.equal(tables[0], embeddings(alone, "node", NUM_NODES))
    assert not torch.equal(tables[0], tables[1])
    # the joined checkpoint is an ordinary one: of a configuration that knows no ensemble
    ordinary = with_train(changed(config, dimension=24), ensemble=1)
    assert_checksums(config.checkpoint_path)
    expected = torch.cat([*(each[:, :4] for each in tables), *(each[:, 4:] for each in tables)], 1)
    assert torch.equal(embeddings(ordinary, "node", NUM_NODES), expected)
    assert pbg.read_config(config.checkpoint_path) == ordinary.pbg()
    unfiltered = {"evaluate": {"split": "train", "filtered": False}}
    ranked = [evaluate.evaluate(changed(each, **unfiltered))["metrics"] for each in (config, ordinary)]
    assert ranked[0] == ranked[1]
    # sums follow what they belong to
    checkpoint = PbgCheckpoint(config.checkpoint_path)
    assert list(map(len, sums_of(checkpoint.read_model().optimizer_state).values())) == [12, 12, 24]
    of_members = [sums_of_rows(each, 8) for each in members]
    torch.testing.assert_close(sums_of_rows(config, 24), sum(of_members) / 3)

    before = contents(config.checkpoint_path)
    assert job.run(config, near_client)["num_edges"] == 0
    assert contents(config.checkpoint_path) == before  # joined once
    figures = job.run(changed(config, num_epochs=3), near_client)
    assert (figures["first_version"], figures["version"], figures["num_edges"]) == (1, 2, 3 * 200)
    assert [each["version"] for each in figures["members"]] == [3, 3, 3]
    assert_checksums(config.checkpoint_path)
    tables = [embeddings(member, "node", NUM_NODES) for member in members]
    assert torch.equal(embeddings(config, "node", NUM_NODES)[:, :4], tables[0][:, :4])

    fewer = with_train(config, ensemble=2)
    assert job.fingerprint(fewer) != job.fingerprint(config)
    for other in (fewer, alone):
        with pytest.raises(ConfigError, match=r"train\.ensemble: 3 -> "):
            job.check(with_train(changed(other, checkpoint_path=config.checkpoint_path), on_change="resume"))
    figures = job.run(fewer, near_client)
    assert figures["moved_aside"] == [str(tmp_path / "checkpoint.stale-1")]
    assert Path(figures["moved_aside"][0], "members", "2", "model.v3.h5").exists()
    assert embeddings(fewer, "node", NUM_NODES).shape == (NUM_NODES, 16)


def test_sums_of_elements_are_joined_as_the_elements_are(config, near_client):
    config = with_train(changed(config, num_epochs=1), optimizer="adagrad", ensemble=2)
    job.run(config, near_client)
    _, second = (sums_of_rows(each, 8) for each in members_of(config))
    assert torch.equal(sums_of_rows(config, 16)[:, 4:8], second[:, :4])


def test_what_a_kill_leaves_is_trained_and_joined_to_the_same_bytes(config, client, near_client):
    """On one worker, which trains the members one after the other, or on several."""
    job.run(config, client)
    whole = contents(config.checkpoint_path)
    shutil.rmtree(config.checkpoint_path)
    job.claim_checkpoint(config)
    done, begun, _ = members_of(config)
    for member, num_epochs in ((done, 2), (begun, 1)):
        job.claim_checkpoint(member)
        job.train(member.model_copy(update={"num_epochs": num_epochs}))
    finished = Path(pbg.model_uri(done.checkpoint_path, 2)).stat().st_mtime_ns
    job.run(config, near_client)
    assert Path(pbg.model_uri(done.checkpoint_path, 2)).stat().st_mtime_ns == finished
    assert contents(config.checkpoint_path) == whole
    # all members are trained, and a kill interrupts the join: before a file, and before the commit
    for leaves in (set(), {"embeddings_node_1.v1.h5"}, {"embeddings_node_1.v1.h5", "members/joined.json"}):
        for name in whole:
            is_joined = "members" not in name and name != "graphmill.json"
            if (is_joined or name == "members/joined.json") and name not in leaves:
                Path(config.checkpoint_path, name).unlink()
        assert job.run(config, near_client)["num_edges"] == 0
        assert contents(config.checkpoint_path) == whole


@pytest.mark.slow
def test_members_keep_their_best_version_and_start_from_members(config, near_client, rng, tmp_path):
    valid = random_triples(rng, NUM_NODES, 1, NUM_NODES, 40)
    config = with_train(changed(config, num_epochs=6), validate_split="valid", patience=1)
    write_edges(config, valid, config.split_path("valid"))
    members = job.run(config, near_client)["members"]
    for member, figures in zip(members_of(config), members, strict=True):
        found = json.loads(Path(member.checkpoint_path, "validation.json").read_text())
        assert figures["version"] == figures["best_epoch"] == found["best"]
        assert figures["validation_mrr"] == max(each["mrr"] for each in found["epochs"])
    more = {"init_path": config.checkpoint_path, "num_epochs": 1, "train": {"ensemble": 3}}
    later = changed(config, checkpoint_path=str(tmp_path / "later"), **more)
    job.run(changed(later, lr=0.0), near_client)
    assert torch.equal(embeddings(later, "node", NUM_NODES), embeddings(config, "node", NUM_NODES))
    too_many = with_train(changed(later, checkpoint_path=str(tmp_path / "more")), ensemble=4)
    with pytest.raises(FormatError, match=r"members/3: expected a checkpoint \(init_path\)"):
        job.run(too_many, near_client)


def test_without_an_ensemble(config):
    """The record is as before, and a checkpoint of PBG is never replaced; members have a GPU each."""
    one = with_train(config, ensemble=1)
    assert "ensemble" not in job.fingerprint(one)["train"]
    job.claim_checkpoint(one)
    job.train(one)
    Path(config.checkpoint_path, "graphmill.json").unlink()
    with pytest.raises(ConfigError, match=r"train\.ensemble"):
        job.check(from_mapping(config.model_dump()))
    members = make_config("unused", num_gpus=2, train={"ensemble": 2})
    assert job.one_worker_per_gpu(members) == members


def test_halves_need_an_even_dimension(config):
    with pytest.raises(ConfigError, match="needs an even dimension, found 5"):
        changed(config, dimension=5)


def test_several_workers_share_each_member(config, client):
    shared = with_train(config, num_workers=2, ensemble=2, bucket_assignment="tournament")
    figures = job.run(shared, client)
    assert figures["num_edges"] == 2 * 2 * 200
    tables = [embeddings(member, "node", NUM_NODES) for member in members_of(shared)]
    assert torch.equal(embeddings(shared, "node", NUM_NODES)[:, 4:8], tables[1][:, :4])


@pytest.mark.slow
def test_pipeline_remaps_and_predicts_with_the_joined_checkpoint(tmp_path, triples, graphmill_command):
    run, checkpoint = tmp_path / "out", tmp_path / "out/checkpoint"
    words = of_triples(triples, run, "train.ensemble=2", "num_epochs=1", "dimension=4")
    assert graphmill_command("pipeline", *words) == 0
    record = json.loads((run / "run.json").read_text())
    assert record["stages"]["remap"]["types"]["entity"]["dimension"] == 8
    assert [each["version"] for each in record["stages"]["train"]["members"]] == [1, 1]
    assert "mrr" in record["metrics"]
    settings = [each.removeprefix("--set=") for each in words[2:]]
    assert is_joined(configuration.load(words[1], settings))
    for words in (
        ["predict", run, "--k", 3, "--relation", "r0", "--to", tmp_path / "answers"],
        ["neighbors", run, "--id", "n001", "--relation", "r0"],
        ["evaluate", run, "--split", "valid"],
        ["report", run],
        ["convert", checkpoint, tmp_path / "recis", "--format", "recis"],
    ):
        assert graphmill_command(*words) == 0, words
    assert graphmill.open(str(run)).dimension("entity") == 8
