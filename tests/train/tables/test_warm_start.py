"""init_path where entities or relations have been added: old rows stay, new ones are as in a fresh start."""

import json
import re
import shutil
import socket
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from graphmill import storage
from graphmill.checkpoints import pbg
from graphmill.errors import ConfigError, FormatError, NotFoundError
from graphmill.formats import entity_counts, entity_index
from graphmill.storage.checksums import of_file
from tests.logged import messages_of
from tests.train.graphs import (
    changed,
    differing,
    embeddings,
    make_config,
    node_graph,
    random_edges,
    relation,
    saved,
    write_graph,
)
from train import job
from train.run.trainer import Trainer

TYPES = {"user": {"num_partitions": 3}, "city": {"num_partitions": 1}}
RELATIONS = [
    {"name": "knows", "lhs": "user", "rhs": "user", "operator": "complex_diagonal"},
    {"name": "lives", "lhs": "user", "rhs": "city", "operator": "translation"},
]
BEFORE = {"user": 41, "city": 5}
AFTER = {"user": 50, "city": 6}
KEYS = [("user", 0), ("user", 1), ("user", 2), ("city", 0)]


def day(root, counts, num_edges=200, **more):
    """A graph of the given counts, written."""
    config = make_config(root, **{"entities": TYPES, "relations": RELATIONS} | more)
    counts = {name: count for name, count in counts.items() if name in config.entities}
    write_graph(config, counts, random_edges(config, counts, np.random.default_rng(num_edges), num_edges))
    return config


def tables(config):
    """The trainer's first tables: (embeddings, sums) by partition."""
    trainer = Trainer(config)
    loaded = {key: trainer.store.files.load(key, trainer.version) for key in KEYS}
    return {key: (table.embeddings_ND, table.sums) for key, table in loaded.items()}


@pytest.fixture
def first(tmp_path):
    config = day(tmp_path / "first", BEFORE)
    job.train(config)
    return config


@pytest.mark.slow
@pytest.mark.parametrize("max_norm", [None, 0.5])
def test_old_rows_stay_and_new_rows_are_fresh(first, tmp_path, max_norm):
    second = day(tmp_path / "second", AFTER, init_path=first.checkpoint_path, init_scale=0.01, seed=4)
    second = changed(second, max_norm=max_norm)
    fresh = tables(changed(second, init_path=None))
    for key, (rows, sums) in tables(second).items():
        saved, state = pbg.read_embeddings(first.checkpoint_path, *key, 2)
        old = len(saved)
        assert old < len(rows) == len(sums)
        if max_norm is None:
            assert np.array_equal(rows[:old], saved)
        else:
            assert rows[:old].norm(dim=1).max() <= max_norm + 1e-6
        assert torch.equal(sums[:old], state["state"][0]["sum"])
        assert sums[:old].max() > 0
        assert torch.equal(rows[old:], fresh[key][0][old:])
        assert 0 < rows[old:].abs().max() < 0.06
        assert not sums[old:].any()


@pytest.mark.slow
def test_a_grown_run_trains_and_resumes(first, tmp_path):
    whole, parts = (
        day(tmp_path / name, AFTER, init_path=first.checkpoint_path, num_epochs=2)
        for name in ("whole", "parts")
    )
    job.train(whole)
    job.train(changed(parts, num_epochs=1))
    shutil.rmtree(first.checkpoint_path)  # only the first iteration needs it
    job.train(parts)
    assert not differing(saved(whole), saved(parts))


def test_more_rows_than_today_are_refused(first, tmp_path):
    fewer = day(tmp_path / "second", BEFORE | {"city": 4}, init_path=first.checkpoint_path)
    told = r"embeddings_city_0\.v2\.h5: 5 rows, more than the 4 of .*_city_0\.txt; .*previous_entity_path"
    with pytest.raises(FormatError, match=told):
        job.train(fewer)
    assert pbg.read_version(fewer.checkpoint_path) == 0


@pytest.mark.parametrize(
    ("operator", "message"),
    [
        ("none", "embeddings have dimension 8, the configuration asks for 10; set dimension as it was"),
        ("diagonal", r"has shape \(8,\); the configuration asks for \(10,\); set dimension, operator"),
    ],
)
def test_another_dimension_is_refused(tmp_path, operator, message):
    bare = {"global_emb": False, "relations": [relation(operator)]}
    first = node_graph(tmp_path / "a", np.random.default_rng(1), **bare)
    job.train(first)
    config = node_graph(
        tmp_path / "b", np.random.default_rng(1), dimension=10, init_path=first.checkpoint_path, **bare
    )
    with pytest.raises(FormatError, match=message):
        job.train(config)


def test_init_path_that_is_checkpoint_path(first, near_client):
    with pytest.raises(ConfigError, match=r"init_path: .* is also checkpoint_path"):
        job.run(changed(first, init_path=first.checkpoint_path), near_client)
    assert pbg.read_version(first.checkpoint_path) == 2


def test_init_path_that_is_no_checkpoint_is_told_before_any_stage(first, tmp_path):
    for path, error, told in (("nowhere", NotFoundError, "found none"), ("first", FormatError, "looked for")):
        with pytest.raises(error, match=told):
            job.check(changed(first, init_path=str(tmp_path / path), checkpoint_path=str(tmp_path / "new")))


def write_ids(config, cities):
    with entity_index.new_part(config.entity_path, "city", 0) as writer:
        writer.append(pa.array(cities, pa.string()))


@pytest.mark.slow
def test_entities_that_moved_are_refused(first, tmp_path):
    """Counts alone would fit: every vector would go to another city."""
    second = day(tmp_path / "second", AFTER, init_path=first.checkpoint_path)
    write_ids(first, list("abcde"))
    write_ids(second, list("abcdef"))
    tables(second)
    write_ids(second, list("abxcde"))
    with pytest.raises(FormatError, match=r"row 2 is raw id 'x', which was 'c' .*previous_entity_path"):
        tables(second)


def seal(config):
    """Write the checksums of the raw ids, as etl does."""
    storage.write_checksums(
        storage.manifest_of(config.entity_path).uri,
        {str(path): of_file(str(path)) for path in Path(config.entity_path).rglob("*.parquet")},
    )


@pytest.mark.slow
def test_a_folder_that_has_other_ids_now_is_not_compared_with(tmp_path, caplog):
    """Ids that etl has written anew, in another order: a copy of the former ones may be named."""
    first = day(tmp_path / "first", BEFORE)
    write_ids(first, list("abcde"))
    seal(first)
    job.claim_checkpoint(first)
    job.train(first)
    shutil.copytree(first.entity_path, tmp_path / "copy")
    write_ids(first, list("edcba"))
    seal(first)
    again = changed(first, init_path=first.checkpoint_path, checkpoint_path=str(tmp_path / "again"))
    with pytest.raises(FormatError, match=r"entities has other ids than .*checkpoint was trained with; "):
        tables(again)
    caplog.set_level("INFO", "graphmill")
    second = day(tmp_path / "second", AFTER, init_path=first.checkpoint_path)
    write_ids(second, list("abcdef"))
    tables(second)
    assert "entities; these have other ids now" in caplog.text
    table = {"path": "edges.tsv", "lhs": 0, "rhs": 1, "relation": "knows"}
    named = changed(second, etl={"tables": [table], "previous_entity_path": str(tmp_path / "copy")})
    tables(named)
    write_ids(second, list("abxcde"))
    with pytest.raises(FormatError, match=r"row 2 is raw id 'x', which was 'c' "):
        tables(named)


def say(config, **settings):
    """Have the checkpoint say that it was trained with other settings."""
    config_json = Path(config.checkpoint_path, "config.json")
    former = json.loads(config_json.read_text())
    config_json.write_text(json.dumps(former | settings))
    for manifest in config_json.parent.glob("checksums.*"):  # which whoever has written this would not bring
        manifest.unlink()


@pytest.mark.slow
def test_entities_elsewhere_are_opened_only_if_a_setting_names_them(first, tmp_path, caplog):
    """The checkpoint may come from anybody."""
    elsewhere = tmp_path / "first" / ".." / "elsewhere"
    second = day(tmp_path / "second", AFTER, init_path=first.checkpoint_path)
    write_ids(changed(first, entity_path=str(elsewhere)), list("vwxyz"))
    write_ids(second, list("abcdef"))
    say(first, entity_path=str(elsewhere))
    caplog.set_level("INFO", "graphmill")
    tables(second)
    assert "elsewhere; they are not beside it, and not opened" in caplog.text
    assert "set etl.previous_entity_path" in caplog.text
    with pytest.raises(FormatError, match=r"row 0 is raw id 'a', which was 'v' "):
        table = {"path": "edges.tsv", "lhs": 0, "rhs": 1, "relation": "knows"}
        etl = {"tables": [table], "previous_entity_path": str(tmp_path / "elsewhere")}
        tables(changed(second, etl=etl))


@pytest.mark.slow
def test_no_host_is_asked_that_a_checkpoint_names(first, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        say(first, entity_path=f"hdfs://127.0.0.1:{listening.getsockname()[1]}/entities")
        tables(day(tmp_path / "second", AFTER, init_path=first.checkpoint_path))
        with pytest.raises(BlockingIOError):  # nobody has called
            listening.accept()


def test_a_configuration_that_is_none_is_refused(first, tmp_path):
    second = day(tmp_path / "second", AFTER, init_path=first.checkpoint_path)
    for wrong in ({"relations": 5}, {"relations": ["knows"]}, {"relations": RELATIONS, "entities": 7}):
        say(first, **wrong)
        with pytest.raises(FormatError, match=r"config\.json: expected PyTorch-BigGraph's config"):
            Trainer(second)


NO_NAMES = "3 relations, 4 today, and no names tell which are the same"


class TestRelations:
    """Dynamic relations: the first rows of one table."""

    def day(self, root, num_relations, names=None, **more):
        usual = {"num_epochs": 1, "train": {"relation_init": "random"}, "dynamic_relations": True}
        rng = np.random.default_rng(num_relations)
        config = node_graph(root, rng, 20, 200, num_relations, **usual | more)
        if names:
            entity_counts.write_relation_names(config.entity_path, names)
        return config

    def check_grown(self, second, first):
        """Parameters and sums that the trainer starts from."""
        trainer, fresh = Trainer(second), Trainer(changed(second, init_path=None))
        state, optimizer_state, _ = pbg.read_model(first.checkpoint_path, 1)
        assert set(trainer.model.parameters) == set(state) == set(trainer.adagrad.sums)
        for number, key in enumerate(trainer.model.parameters):
            rows, sums = trainer.model.parameters[key], trainer.adagrad.sums[key]
            saved = optimizer_state["state"][number]
            assert torch.equal(rows[:3], state[key])
            assert torch.equal(rows[3:], fresh.model.parameters[key][3:])
            assert torch.equal(sums[:3], saved["sum"])
            assert sums[:3].max() > 0
            assert not sums[3:].any()
            assert trainer.adagrad.steps[key] == saved["step"] > 0
        return trainer

    @pytest.mark.parametrize("operator", ["complex_diagonal", "affine"])
    def test_new_relations_are_fresh(self, tmp_path, operator):
        relations = [relation(operator)]
        first = self.day(tmp_path / "first", 3, ["m", "z", "q"], relations=relations)
        job.train(first)
        names = ["m", "z", "q", "a", "b"]
        second = self.day(tmp_path / "second", 5, names, relations=relations, init_path=first.checkpoint_path)
        trainer = self.check_grown(second, first)
        assert len(trainer.model.parameters) % 2 == 0
        trainer.run()
        assert pbg.read_version(second.checkpoint_path) == 1

    @pytest.mark.parametrize(
        ("before", "num", "today", "lost", "message"),
        [
            (["b", "m", "z"], 4, ["a", "b", "m", "z"], None, r"relation 0 was 'b', and is 'a' in .*previous"),
            (None, 2, None, None, r"3 relations, more than the 2 of .*dynamic_rel_count\.txt"),
            (["a", "b", "c"], 4, None, None, NO_NAMES),
            (["a", "b", "c"], 4, ["a", "b", "c"], None, NO_NAMES),  # of an earlier day
            (None, 4, ["a", "b", "c", "d"], None, NO_NAMES),
            (["a", "b", "c"], 4, ["a", "b", "c", "d"], "checkpoint/config.json", NO_NAMES),
            (["a", "b", "c"], 4, ["a", "b", "c", "d"], "entities", NO_NAMES),
        ],
    )
    def test_relations_that_are_not_the_first_of_today_are_refused(
        self, tmp_path, before, num, today, lost, message
    ):
        first = self.day(tmp_path / "first", 3, before)
        job.train(first)
        if lost:
            (tmp_path / "first" / lost).rename(tmp_path / "lost")
        second = self.day(tmp_path / "second", num, today, init_path=first.checkpoint_path)
        with pytest.raises(FormatError, match=message):
            Trainer(second)

    def test_equal_counts_without_names_keep_positions(self, tmp_path, caplog):
        first = self.day(tmp_path / "first", 3)
        job.train(first)
        second = self.day(tmp_path / "second", 3, ["a", "b", "c"], init_path=first.checkpoint_path)
        caplog.set_level("INFO", "graphmill")
        self.check_grown(second, first)
        assert "relations of" in caplog.text
        assert "taken by position" in caplog.text

    def test_resuming_with_more_relations_names_init_path(self, tmp_path):
        first = self.day(tmp_path / "first", 3)
        job.train(first)
        entity_counts.write_relation_count(first.entity_path, 4)
        with pytest.raises(FormatError, match=r"shape \(3, 8\).*\(4, 8\).*as init_path"):
            Trainer(changed(first, num_epochs=2))


@pytest.mark.parametrize("is_dynamic", [True, False])
def test_static_and_dynamic_relations_do_not_start_from_each_other(tmp_path, rng, is_dynamic):
    knows = {"relations": [relation("complex_diagonal")], "num_epochs": 1}
    first = node_graph(tmp_path / "first", rng, dynamic_relations=is_dynamic, **knows)
    job.train(first)
    other = {"init_path": first.checkpoint_path, "dynamic_relations": not is_dynamic}
    second = node_graph(tmp_path / "second", rng, **other, **knows)
    now, then = str(not is_dynamic).lower(), str(is_dynamic).lower()
    with pytest.raises(FormatError, match=rf"expected .* dynamic_relations: {now}, found {then}; set it as"):
        Trainer(second)


def test_other_scores_than_those_of_init_path_are_told_of(tmp_path, rng, caplog):
    first = node_graph(tmp_path / "first", rng, num_epochs=1)
    job.train(first)
    for changes in ({}, {"comparator": "cos", "bias": True}):
        assert not messages_of(caplog, "WARNING")
        Trainer(node_graph(tmp_path / f"of{len(changes)}", rng, init_path=first.checkpoint_path, **changes))
    assert re.search(
        "trained with comparator dot, not cos.*trained with bias False, not True", caplog.text, re.S
    )


SHOP = {"shop": {"num_partitions": 1}}
SELLS = {"name": "sells", "lhs": "shop", "rhs": "city", "operator": "complex_diagonal"}


class TestAddedTypesAndRelations:
    """Static relations and entity types go by their names."""

    def day_two(self, root, first, relations, entities, **more):
        counts, own = AFTER | {"shop": 7}, {"relations": relations, "entities": entities, **more}
        return day(root, counts, init_path=first.checkpoint_path, **own)

    def saved(self, config):
        state, optimizer_state, _ = pbg.read_model(config.checkpoint_path, 2)
        operators = ["rhs_operators.0.real", "rhs_operators.0.imag", "rhs_operators.1.translation"]
        order = [*operators, "global_embs.emb_user", "global_embs.emb_city"]
        return {key: (state[key], optimizer_state["state"][n]["sum"]) for n, key in enumerate(order)}

    @pytest.mark.slow
    def test_old_ones_are_taken_over_wherever_they_stand(self, first, tmp_path):
        """A relation added in front, the old two the other way round, and a type added in front."""
        config = self.day_two(tmp_path / "second", first, [SELLS, RELATIONS[1], RELATIONS[0]], SHOP | TYPES)
        trainer = Trainer(config)
        then = {
            "rhs_operators.2.real": "rhs_operators.0.real",
            "rhs_operators.2.imag": "rhs_operators.0.imag",
            "rhs_operators.1.translation": "rhs_operators.1.translation",
            "global_embs.emb_user": "global_embs.emb_user",
            "global_embs.emb_city": "global_embs.emb_city",
        }
        saved = self.saved(first)
        fresh = Trainer(changed(config, init_path=None))
        for key, value in trainer.model.parameters.items():
            if key in then:
                old, sums = saved[then[key]]
                assert torch.equal(value, old)
                assert torch.equal(trainer.adagrad.sums[key], sums)
                assert sums.max() > 0
            else:
                assert torch.equal(value, fresh.model.parameters[key])
                assert not trainer.adagrad.sums[key].any()
        trainer.run()
        assert embeddings(config, "shop", 7).abs().sum(1).min() > 0

    @pytest.mark.slow
    def test_what_is_gone_is_left_out(self, first, tmp_path, caplog):
        caplog.set_level("INFO", "graphmill")
        config = self.day_two(tmp_path / "second", first, RELATIONS[:1], {"user": TYPES["user"]})
        trainer = Trainer(config)
        assert torch.equal(
            trainer.model.parameters["rhs_operators.0.real"], self.saved(first)["rhs_operators.0.real"][0]
        )
        assert "not needed any more: global_embs.emb_city, rhs_operators.1.translation" in caplog.text
        trainer.run()

    def test_another_operator_of_the_same_name_is_refused(self, first, tmp_path):
        other = [RELATIONS[0], RELATIONS[1] | {"operator": "diagonal"}]
        config = self.day_two(tmp_path / "second", first, other, TYPES)
        with pytest.raises(FormatError, match=r"unknown parameter 'rhs_operators\.1\.translation'"):
            Trainer(config)

    def test_a_model_without_the_global_embeddings_of_the_first_is_refused(self, first, tmp_path):
        config = self.day_two(tmp_path / "second", first, RELATIONS, TYPES, global_emb=False)
        told = (
            r"unknown parameter 'global_embs\.emb_city'; .*; set dimension, operator and global_emb as they"
        )
        with pytest.raises(FormatError, match=told):
            Trainer(config)

    def test_other_partitions_are_refused(self, first, tmp_path):
        types = TYPES | {name: {"num_partitions": 2} for name in ("user", "city")}
        config = self.day_two(tmp_path / "second", first, RELATIONS, types)
        told = (
            r"'user' has 3 partitions, here 2, 'city' has 1 partitions, here 2; "
            r"set entities\.user\.num_partitions to 3 and entities\.city\.num_partitions to 1, or start"
        )
        with pytest.raises(FormatError, match=told):
            job.train(config)
