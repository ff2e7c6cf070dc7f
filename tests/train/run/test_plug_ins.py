"""Whole runs with plug-ins: in every process, resumed, evaluated, asked, converted, and refused in words."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import tests.train.plug_ins  # registers the built-ins written again
from graphmill import config as configuration
from graphmill.ask.evaluate.evaluate import evaluate
from graphmill.ask.model import Model
from graphmill.ask.relation import read_parameters, relation_of
from graphmill.ask.run import TrainedRun
from graphmill.checkpoints import open_checkpoint, pbg
from graphmill.cli.main import command
from graphmill.config.sections.evaluate import EvaluateConfig
from graphmill.config.sections.train import TrainConfig
from graphmill.errors import ConfigError, NotFoundError
from graphmill.model.registry import OPERATORS, PlugInSource, offer
from graphmill.run.trained_with import saved_settings
from graphmill.vocab import Side
from tests import REPOSITORY
from tests.train.graphs import differing, embeddings, make_config, saved, write_graph
from tests.train.model import test_features
from tests.train.run.test_trainer import COUNTS, RELATIONS, TYPES, write_mixed
from train import job
from train.pbg_api import do_eval
from train.plan import decide

PLAIN = {"engine": "plain", "resident": "never"}
OPERATOR = """
import torch
from train.pbg_api import DYNAMIC_OPERATORS, OPERATORS, AbstractDynamicOperator, AbstractOperator


@OPERATORS.register_as("{name}")
class ShiftAndScale(AbstractOperator):
    def __init__(self, dim):
        super().__init__(dim)
        self.shift = torch.nn.Parameter(0.1 * torch.randn(dim))
        self.scale = torch.nn.Parameter(torch.ones(dim))

    def forward(self, embeddings):
        return {factor} * embeddings * self.scale + self.shift


@DYNAMIC_OPERATORS.register_as("{name}")
class Dynamic(AbstractDynamicOperator):
    def __init__(self, dim, num_operations):
        super().__init__(dim, num_operations)
        self.shift = torch.nn.Parameter(0.1 * torch.randn(num_operations, dim))
        self.scale = torch.nn.Parameter(torch.ones(num_operations, dim))

    def forward(self, embeddings, operator_idxs):
        return {factor} * embeddings * self.scale[operator_idxs] + self.shift[operator_idxs]
"""


def plug_in_file(folder: Path, name: str, factor: float = 1.0) -> str:
    path = folder / f"{name}.py"
    path.write_text(OPERATOR.format(name=name, factor=factor))
    return str(path)


def written_again(relations):
    return [each | {"operator": f"my_{each['operator']}"} for each in relations]


def mixed_runs(tmp_path, rng, **more):
    """A run with built-ins, and the same with plug-ins."""
    own = {"entities": TYPES, "relations": RELATIONS, "train": PLAIN, "eval_fraction": 0.1} | more
    ours = own | {
        "relations": written_again(RELATIONS),
        "comparator": "my_l2",
        "loss_fn": "my_ranking",
        "regularizer": "my_N3",
        "train": PLAIN | {"negative_sampler": "my_uniform"},
    }
    own |= {"comparator": "l2", "loss_fn": "ranking"}
    runs = [make_config(tmp_path / "built-in", **own), make_config(tmp_path / "plug-ins", **ours)]
    write_mixed(runs[0], rng)
    for part in ("entities", "edges"):
        shutil.copytree(tmp_path / "built-in" / part, tmp_path / "plug-ins" / part)
    return runs


@pytest.mark.slow
def test_a_run_with_plug_ins_ends_as_one_with_built_ins(tmp_path, rng):
    """Static relations, partitions, global embeddings, max_norm, a regularizer, held-out edges."""
    relation_init = {"relation_init": "identity"}
    built_in, plug_ins = mixed_runs(
        tmp_path, rng, global_emb=True, max_norm=1.5, regularization_coef=0.01, init_scale=0.3
    )
    built_in = built_in.with_section(TrainConfig(**PLAIN, **relation_init))
    theirs, ours = job.train(built_in), job.train(plug_ins)
    assert ours["epochs"][-1]["loss"] == pytest.approx(theirs["epochs"][-1]["loss"], rel=1e-4)
    for name, count in COUNTS.items():
        pair = [embeddings(each, name, count) for each in (plug_ins, built_in)]
        torch.testing.assert_close(*pair, rtol=1e-3, atol=1e-4)
    state, optimizer, _ = pbg.read_model(plug_ins.checkpoint_path, 2)
    expected, _, _ = pbg.read_model(built_in.checkpoint_path, 2)
    assert state.keys() == expected.keys()
    assert optimizer is not None
    for key, value in expected.items():
        torch.testing.assert_close(state[key], value, rtol=1e-3, atol=1e-4)
    figures = []
    for each in (plug_ins, built_in):
        section = EvaluateConfig(split="train", filtered=False, block_bytes=1 << 14)
        figures.append(evaluate(each.model_copy(update={"evaluate": section}))["metrics"])
    assert figures[0] == pytest.approx(figures[1], rel=0.02)


def small(tmp_path, rng, operator="shift_and_scale", dynamic=False, **more):
    """A graph of one type and three relations, whose operator is in a file."""
    names = ["all"] if dynamic else ["a", "b", "c"]
    train = {"plugins": [plug_in_file(tmp_path, operator)]} | more.pop("train", {})
    config = make_config(
        tmp_path / "run",
        entities={"node": {"num_partitions": 2}},
        relations=[{"name": name, "lhs": "node", "rhs": "node", "operator": operator} for name in names],
        dynamic_relations=dynamic,
        global_emb=False,
        train=train,
        **more,
    )
    triples = np.stack([rng.integers(40, size=200), rng.integers(3, size=200), rng.integers(40, size=200)], 1)
    write_graph(config, {"node": 40}, triples)
    return config


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_other_processes_find_a_plug_in(tmp_path, rng, client, dynamic):
    """The file travels with the settings: workers need no file."""
    config = small(tmp_path, rng, f"travels_{dynamic}".lower(), dynamic)
    (tmp_path / f"travels_{dynamic}.py".lower()).unlink()
    figures = job.run(config, client)
    assert figures["version"] == 2
    assert "the compiled step cannot train operator 'travels_" in figures["plan"]["reasons"][0]


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_stopped_run_goes_on_and_ends_the_same(tmp_path, rng, dynamic):
    config = small(tmp_path, rng, f"goes_on_{dynamic}".lower(), dynamic)
    job.train(config.model_copy(update={"num_epochs": 1}))
    job.train(config)
    once = config.model_copy(update={"checkpoint_path": str(tmp_path / "once")})
    job.train(once)
    assert not differing(saved(config), saved(once))


@pytest.mark.parametrize("dynamic", [False, True])
def test_numpy_scores_as_the_model(tmp_path, rng, dynamic):
    """`graphmill predict` and neighbors along a relation score with numpy's arrays."""
    config = small(tmp_path, rng, f"scores_{dynamic}".lower(), dynamic, comparator="order", num_epochs=1)
    job.train(config)
    trained = TrainedRun.committed(config, "score")
    parameters = read_parameters(trained)
    model = Model(config, 3 if dynamic else None)
    model.load_state({key: torch.from_numpy(value) for key, value in parameters.items()})
    vectors = rng.standard_normal((4, 8), np.float32)
    for number in range(3):
        relation = relation_of(trained, parameters, number)
        for side in Side:
            rel = torch.full((4,), number) if dynamic else None
            place = 0 if dynamic else number
            query = model.query(place, side, torch.from_numpy(vectors), rel)
            candidates = model.candidates(place, side, torch.from_numpy(vectors[::-1].copy()))
            made = relation.queries(side, vectors), relation.candidates(side, vectors[::-1])
            expected = model.matrix_scores(query, candidates, side)
            np.testing.assert_allclose(relation.matrix_scores(side, *made), expected, rtol=1e-5, atol=1e-6)
            pairs = model.edge_scores(query, candidates, side)
            np.testing.assert_allclose(relation.edge_scores(side, *made), pairs, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("target_format", ["recis", "pbg-legacy"])
def test_conversion_keeps_each_sum_with_its_parameter(tmp_path, rng, target_format):
    """Files have no order, and this class defines `shift` before `scale`."""
    config = small(tmp_path, rng, f"converted_{target_format}")
    job.train(config)
    file = str(tmp_path / f"converted_{target_format}.py")
    for source, target, name in (("run/checkpoint", "other", target_format), ("other", "again", "pbg")):
        arguments = [str(tmp_path / source), str(tmp_path / target), "--format", name, "--plugins", file]
        done = CliRunner().invoke(command, ["convert", *arguments])
        assert done.exit_code == 0, done.output
    before, after = (
        pbg.read_model(str(path), pbg.read_version(str(path)))
        for path in (tmp_path / "run/checkpoint", tmp_path / "again")
    )
    for key, value in before[0].items():
        assert torch.equal(value, after[0][key])
    for number, state in before[1]["state"].items():
        assert torch.equal(state["sum"], after[1]["state"][number]["sum"])
    other = open_checkpoint(str(tmp_path / "other")).read_model()
    sums = dict(
        zip(other.parameters, (each["sum"] for each in other.optimizer_state["state"].values()), strict=True)
    )
    names = [key.rpartition(".")[2] for key in Model(config).parameters]
    for number, name in enumerate(names):
        key = f"rhs_operators.{number // 2}.{name}"
        assert torch.equal(sums[key], before[1]["state"][number]["sum"])


def test_a_checkpoint_of_an_operator_that_is_not_there(tmp_path, rng):
    config = small(tmp_path, rng, "lost", num_epochs=1)
    job.train(config)
    path = Path(config.checkpoint_path)
    saved = json.loads((path / "config.json").read_text())
    for each in saved["relations"]:
        each["operator"] = "nobody_has_it"
    (path / "config.json").write_text(json.dumps(saved))
    (path / "checksums.v1.xxh128").unlink()
    with pytest.raises(ConfigError, match=r"was trained with.*nobody_has_it"):
        evaluate(config)
    with pytest.raises(ConfigError, match=r"operator 'nobody_has_it': expected one of none.*train\.plugins"):
        configuration.from_mapping(saved)


def test_conversion_asks_for_the_class_of_several_parameters(tmp_path, rng):
    config = small(tmp_path, rng, "unknown_order", num_epochs=1)
    job.train(config)
    path = Path(config.checkpoint_path)
    saved = (path / "config.json").read_text().replace("unknown_order", "nobody_has_it")
    (path / "config.json").write_text(saved)
    (path / "checksums.v1.xxh128").unlink()
    done = CliRunner().invoke(command, ["convert", str(path), str(tmp_path / "to"), "--format", "recis"])
    assert "operator 'nobody_has_it' is a plug-in with several parameters" in str(done.exception)
    assert not (tmp_path / "to").exists()


def test_featurized_entities(tmp_path):
    """Two runs on lists of features, by built-ins and by plug-ins."""
    rows = []
    for name, operator, loss in (("one", "diagonal", "softmax"), ("two", "my_diagonal", "my_softmax")):
        config = make_config(
            tmp_path / name,
            entities=test_features.TYPES,
            relations=[each | {"operator": operator} for each in test_features.RELATIONS],
            loss_fn=loss,
            train={"engine": "plain", "relation_init": "identity"},
        )
        lists = [(k % 9, 0, [k % 5, 5 + k % 7]) for k in range(40)]
        lists += [([k % 12], 1, [(k + 1) % 12, k % 4]) for k in range(40)]
        test_features.write(config, lists)
        job.train(config)
        rows.append(embeddings(config, "doc", 12))
    torch.testing.assert_close(rows[0], rows[1], rtol=1e-4, atol=1e-5)


def test_do_eval_scores_with_plug_ins(tmp_path, rng):
    config = small(tmp_path, rng, "do_eval", comparator="my_l2", loss_fn="my_ranking", num_epochs=1)
    job.train(config)
    found = do_eval(config.pbg())
    assert found["count"] == 200
    assert 0 < found["metrics"]["mrr"] < 1


def test_names_and_files_that_are_not_there(tmp_path):
    with pytest.raises(
        ConfigError, match=r"loss_fn: loss_fn 'mine': expected one of ranking, .*plug_ins\.md"
    ):
        make_config(tmp_path, loss_fn="mine")
    with pytest.raises(NotFoundError, match=r"train\.plugins: .*no_such\.py"):
        make_config(tmp_path, train={"plugins": ["no_such.py"]}, comparator="mine")
    with pytest.raises(ConfigError, match=r"train\.plugins: no_such_module cannot be run: ModuleNotFound"):
        make_config(tmp_path, train={"plugins": ["no_such_module"]}, comparator="mine")
    offer([PlugInSource("no_such_module", "")])  # other tests look up names too
    wrong = tmp_path / "wrong.py"
    wrong.write_text("1 / 0")
    with pytest.raises(ConfigError, match=r"wrong\.py cannot be run: ZeroDivisionError"):
        make_config(tmp_path, train={"plugins": [str(wrong)]}, comparator="mine")
    wrong.write_text("")
    make_config(tmp_path, train={"plugins": [str(wrong)]})


def test_an_edited_file_takes_the_place_of_the_former(tmp_path):
    for factor in (1.0, 2.0):
        settings = make_config(
            tmp_path,
            relations=[{"name": "r", "lhs": "node", "rhs": "node", "operator": "edited"}],
            train={"plugins": [plug_in_file(tmp_path, "edited", factor)]},
        )
        module = OPERATORS.get_class("edited")(8)
        with torch.no_grad():
            module.shift.zero_()
            assert module(torch.ones(8)).tolist() == [factor] * 8
        found = settings.train.result_settings()["plugins"]
        assert found == settings.train.plugins.checksums()
        assert list(found) == ["edited.py"]


def test_two_files_cannot_have_one_name(tmp_path):
    files = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        files.append(plug_in_file(tmp_path / folder, "taken"))
    relations = [{"name": "r", "lhs": "node", "rhs": "node", "operator": "taken"}]
    with pytest.raises(ConfigError, match=r"operator 'taken': expected one class of this name, found .*two/"):
        make_config(tmp_path, relations=relations, train={"plugins": files})
    with pytest.raises(ConfigError, match="operator 'diagonal' is built in"):
        OPERATORS.register("diagonal", object)
    for file in files:
        offer([PlugInSource(file, "")])


def test_a_python_configuration_with_decorators(tmp_path, monkeypatch):
    conf = tmp_path / "conf.py"
    conf.write_text(
        OPERATOR.format(name="in_conf", factor=1.0)
        + """
def get_torchbiggraph_config():
    return {
        "output": "out",
        "entities": {"node": {"num_partitions": 1}},
        "relations": [{"name": "r", "lhs": "node", "rhs": "node", "operator": "in_conf"}],
        "dimension": 4,
    }
"""
    )
    monkeypatch.chdir(tmp_path)
    config = configuration.load("conf.py")
    assert list(config.train.plugins) == [str(conf)]
    assert config.recorded()["train"]["plugins"] == [str(conf)]
    assert config.train.plugins.sources[0].text == conf.read_text()


def test_the_plan_says_why_the_plain_step_trains(tmp_path):
    for setting, reason in (
        ({"loss_fn": "my_softmax"}, "loss_fn 'my_softmax'"),
        ({"comparator": "my_dot"}, "comparator 'my_dot'"),
        ({"regularizer": "my_N3", "regularization_coef": 0.1}, "regularizer 'my_N3'"),
    ):
        reasons: list[str] = []
        config = make_config(tmp_path, **setting)
        assert decide.steps_for(config, torch.device("cpu"), reasons) == {"edges": "plain"}
        assert reasons == [f"the compiled step cannot train {reason}"]
    sampled = make_config(tmp_path, train={"negative_sampler": "my_uniform"})
    assert decide.steps_for(sampled, torch.device("cpu"), []) == {"edges": "compiled"}
    assert decide.supported.obstacle(sampled) == "train.negative_sampler 'my_uniform'"


def test_an_operator_for_static_relations_alone(tmp_path):
    if "static_only" not in OPERATORS.registry:
        OPERATORS.register("static_only", tests.train.plug_ins.Diagonal)
    relations = [{"name": "r", "lhs": "node", "rhs": "node", "operator": "static_only"}]
    with pytest.raises(ConfigError, match=r"relations.*static_only.*DYNAMIC_OPERATORS too"):
        make_config(tmp_path, relations=relations, dynamic_relations=True)


@pytest.mark.slow
def test_an_installed_package_needs_no_key(tmp_path):
    """Its entry points name its modules; the program below has no other way to them."""
    (tmp_path / "package_with_operator.py").write_text(OPERATOR.format(name="of_package", factor=1.0))
    metadata = tmp_path / "package_with_operator-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: package-with-operator\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[graphmill.plugins]\nmine = package_with_operator\n")
    program = """
import sys
from graphmill.config import from_mapping
from graphmill.ask.model import Model

raw = {"entities": {"node": {"num_partitions": 1}}, "dimension": 4, "output": "out", "global_emb": False}
from_mapping(raw | {"relations": [{"name": "r", "lhs": "node", "rhs": "node"}]})
assert "package_with_operator" not in sys.modules  # a run without plug-ins imports none
relation = {"name": "r", "lhs": "node", "rhs": "node", "operator": "of_package"}
model = Model(from_mapping(raw | {"relations": [relation]}))
assert list(model.parameters) == ["rhs_operators.0.shift", "rhs_operators.0.scale"]
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY}:{tmp_path}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_checkpoint_of_somebody_else_brings_no_code(tmp_path, rng):
    config = small(tmp_path, rng, "own_code", num_epochs=1)
    job.train(config)
    path = Path(config.checkpoint_path)
    trap = tmp_path / "trap.py"
    trap.write_text(f"open({str(tmp_path / 'caught')!r}, 'w')")
    saved = json.loads((path / "config.json").read_text()) | {"train": {"plugins": [str(trap)]}}
    saved["relations"][0]["operator"] = "caught"
    (path / "config.json").write_text(json.dumps(saved))
    (path / "checksums.v1.xxh128").unlink()
    assert saved_settings(str(path)) == {}
    remap = ["remap", "--checkpoint-path", str(path), "--entity-path", config.entity_path]
    done = CliRunner().invoke(command, [*remap, "--output-dir", str(tmp_path / "to")])
    assert "operator 'caught'" in str(done.exception)
    assert not (tmp_path / "caught").exists()


def test_a_broken_file_stops_only_those_who_need_it(tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0")
    files = [str(broken), plug_in_file(tmp_path, "beside_broken")]
    relations = [{"name": "r", "lhs": "node", "rhs": "node", "operator": "beside_broken"}]
    make_config(tmp_path, relations=relations, train={"plugins": files})
    with pytest.raises(ConfigError, match=r"broken\.py cannot be run: ZeroDivisionError"):
        make_config(tmp_path, relations=relations, comparator="lost", train={"plugins": files})
    offer([PlugInSource(str(broken), "")])


def test_files_of_other_settings_give_way(tmp_path):
    """A process may see several runs: the last settings decide, whatever ran before."""
    folders = [tmp_path / "one", tmp_path / "two"]
    relations = [{"name": "r", "lhs": "node", "rhs": "node", "operator": "gives_way"}]
    for _ in range(2):
        for factor, folder in enumerate(folders, 2):
            folder.mkdir(exist_ok=True)
            file = plug_in_file(folder, "gives_way", factor)
            make_config(tmp_path, relations=relations, train={"plugins": [file]})
            with torch.no_grad():
                module = OPERATORS.get_class("gives_way")(4)
                module.shift.zero_()
                assert module(torch.ones(4)).tolist() == [factor] * 4


def test_a_file_may_look_up_names_while_it_runs(tmp_path):
    file = tmp_path / "looks_up.py"
    text = OPERATOR.format(name="looks_up", factor=1.0)
    file.write_text(f"{text}\nassert OPERATORS.get_class('looks_up') is ShiftAndScale\n")
    relations = [{"name": "r", "lhs": "node", "rhs": "node", "operator": "looks_up"}]
    make_config(tmp_path, relations=relations, train={"plugins": [str(file)]})
