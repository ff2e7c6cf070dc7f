"""Whole runs with plug-ins: in every process, resumed, evaluated, asked, converted, and refused in words."""

import json
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
from graphmill.errors import ConfigError, NotFoundError
from graphmill.model.registry import OPERATORS, PlugInSource, offer
from graphmill.run.trained_with import saved_settings
from graphmill.vocab import Side
from tests.train.graphs import differing, embeddings, make_config, node_graph, relation, saved
from tests.train.run.test_trainer import COUNTS, RELATIONS, TYPES, write_mixed
from train import job
from train.gpu import fused_pass
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


@pytest.mark.slow
def test_a_run_with_plug_ins_ends_as_one_with_built_ins(tmp_path):
    """Static relations, partitions, global embeddings, max_norm, a regularizer, held-out edges."""
    common = {
        "entities": TYPES, "eval_fraction": 0.1, "global_emb": True, "max_norm": 1.5,
        "regularization_coef": 0.01, "init_scale": 0.3,
    }  # fmt: skip
    built_in, plug_ins = (
        make_config(
            tmp_path / name,
            relations=[each | {"operator": f"{my}{each['operator']}"} for each in RELATIONS],
            comparator=f"{my}cos",
            loss_fn=f"{my}ranking",
            regularizer=f"{my}N3",
            train=PLAIN | own | {"memory_partitions": 16},  # one block: a plug-in draws all rows alike
            **common,
        )
        for name, my, own in (
            ("built-in", "", {"relation_init": "identity"}),
            ("plug-ins", "my_", {"negative_sampler": "my_uniform"}),
        )
    )
    for config in (built_in, plug_ins):
        write_mixed(config, np.random.default_rng(3))
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
    train = {"plugins": [plug_in_file(tmp_path, operator)]} | more.pop("train", {})
    relations = [relation(operator, name=name) for name in (["all"] if dynamic else ["a", "b", "c"])]
    settings = {"num_partitions": 2, "dynamic_relations": dynamic, "global_emb": False, **more}
    return node_graph(tmp_path / "run", rng, 40, 200, 3, relations=relations, train=train, **settings)


@pytest.mark.parametrize("dynamic", [False, True])
def test_other_processes_find_a_plug_in_and_a_stopped_run_ends_the_same(tmp_path, rng, client, dynamic):
    """The file travels with the settings: workers need no file."""
    config = small(tmp_path, rng, f"travels_{dynamic}".lower(), dynamic)
    (tmp_path / f"travels_{dynamic}.py".lower()).unlink()
    figures = job.run(config.model_copy(update={"num_epochs": 1}), client)
    assert "the compiled step cannot train operator 'travels_" in figures["plan"]["reasons"][0]
    assert job.run(config, client)["version"] == 2
    once = config.model_copy(update={"checkpoint_path": str(tmp_path / "once")})
    job.train(once)
    assert not differing(saved(config), saved(once))


@pytest.mark.parametrize("dynamic", [False, True])
def test_numpy_scores_as_the_model(tmp_path, rng, dynamic):
    """`graphmill predict` and neighbors along a relation score with numpy's arrays."""
    config = small(tmp_path, rng, f"scores_{dynamic}".lower(), dynamic, comparator="order", num_epochs=1)
    job.train(config)
    trained = TrainedRun.to_evaluate(config, None)
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
def test_conversion_keeps_each_sum_with_its_parameter(tmp_path, rng):
    """Files have no order, and this class defines `shift` before `scale`."""
    config = small(tmp_path, rng, "converted")
    job.train(config)
    before = pbg.read_model(config.checkpoint_path, 2)
    names = [key.rpartition(".")[2] for key in Model(config).parameters]
    for target_format in ("recis", "pbg-legacy"):
        other, again = tmp_path / target_format, tmp_path / f"from-{target_format}"
        for source, target, name in ((config.checkpoint_path, other, target_format), (other, again, "pbg")):
            words = ["convert", str(source), str(target), "--format", name]
            done = CliRunner().invoke(command, [*words, "--plugins", str(tmp_path / "converted.py")])
            assert done.exit_code == 0, done.output
        after = pbg.read_model(str(again), pbg.read_version(str(again)))
        for key, value in before[0].items():
            assert torch.equal(value, after[0][key])
        model = open_checkpoint(str(other)).read_model()
        states = model.optimizer_state["state"].values()
        sums = dict(zip(model.parameters, (each["sum"] for each in states), strict=True))
        for number, state in before[1]["state"].items():
            assert torch.equal(state["sum"], after[1]["state"][number]["sum"])
            assert torch.equal(state["sum"], sums[f"rhs_operators.{number // 2}.{names[number]}"])


def test_a_checkpoint_of_an_operator_that_is_not_there(tmp_path, rng):
    """It is refused, and a checkpoint of somebody else brings no code."""
    config = small(tmp_path, rng, "lost", num_epochs=1)
    job.train(config)
    path = Path(config.checkpoint_path)
    trap = tmp_path / "trap.py"
    trap.write_text(f"open({str(tmp_path / 'caught')!r}, 'w')")
    text = (path / "config.json").read_text().replace('"lost"', '"nobody_has_it"')
    saved = json.loads(text) | {"train": {"plugins": [str(trap)]}}
    (path / "config.json").write_text(json.dumps(saved))
    (path / "checksums.v1.xxh128").unlink()
    assert saved_settings(str(path)) == {}
    with pytest.raises(ConfigError, match=r"was trained with.*nobody_has_it"):
        evaluate(config)
    with pytest.raises(ConfigError, match=r"operator 'nobody_has_it': expected one of none.*train\.plugins"):
        configuration.from_mapping(json.loads(text))
    remap = ["remap", "--checkpoint-path", str(path), "--entity-path", config.entity_path, "--output-dir"]
    for words, message in (
        ([*remap, str(tmp_path / "tables")], "operator 'nobody_has_it'"),
        (
            ["convert", str(path), str(tmp_path / "to"), "--format", "recis"],
            "operator 'nobody_has_it' is a plug-in with several parameters",
        ),
    ):
        assert message in str(CliRunner().invoke(command, words).exception)
    assert not (tmp_path / "caught").exists()
    assert not (tmp_path / "to").exists()


def with_operator(root, name, *files, **more):
    return make_config(root, relations=[relation(name)], train={"plugins": [*map(str, files)]}, **more)


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
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0")
    # it stops only those who need it
    files = broken, plug_in_file(tmp_path, "beside_broken")
    with_operator(tmp_path, "beside_broken", *files)
    with pytest.raises(ConfigError, match=r"broken\.py cannot be run: ZeroDivisionError"):
        with_operator(tmp_path, "beside_broken", *files, comparator="lost")
    offer([PlugInSource(str(broken), "")])


def test_the_last_settings_decide(tmp_path):
    """A process may see several runs, and a file that was edited."""
    for folder, factor in (("one", 1.0), ("two", 2.0), ("one", 1.0), ("one", 3.0)):
        (tmp_path / folder).mkdir(exist_ok=True)
        file = plug_in_file(tmp_path / folder, "edited", factor)
        settings = with_operator(tmp_path, "edited", file)
        module = OPERATORS.get_class("edited")(8)
        with torch.no_grad():
            module.shift.zero_()
            assert module(torch.ones(8)).tolist() == [factor] * 8
        recorded = settings.train.result_settings()["plugins"]
        assert recorded == settings.train.plugins.checksums()
        assert list(recorded) == ["edited.py"]


def test_a_name_is_of_one_class_and_of_two_where_relations_are_dynamic(tmp_path):
    files = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        files.append(plug_in_file(tmp_path / folder, "taken"))
    with pytest.raises(ConfigError, match=r"operator 'taken': expected one class of this name, found .*two/"):
        with_operator(tmp_path, "taken", *files)
    with pytest.raises(ConfigError, match="operator 'diagonal' is built in"):
        OPERATORS.register("diagonal", object)
    for file in files:
        offer([PlugInSource(file, "")])
    if "static_only" not in OPERATORS.registry:
        OPERATORS.register("static_only", tests.train.plug_ins.Diagonal)
    with pytest.raises(ConfigError, match=r"relations.*static_only.*DYNAMIC_OPERATORS too"):
        with_operator(tmp_path, "static_only", dynamic_relations=True)


def test_a_python_configuration_with_decorators(tmp_path, monkeypatch):
    conf = tmp_path / "conf.py"
    raw = make_config("out").pbg() | {"output": "out", "relations": [relation("in_conf")]}
    text = OPERATOR.format(name="in_conf", factor=1.0)
    text += f"\n\ndef get_torchbiggraph_config():\n    return {raw!r}\n"
    conf.write_text(text)
    monkeypatch.chdir(tmp_path)
    config = configuration.load("conf.py")
    assert list(config.train.plugins) == config.recorded()["train"]["plugins"] == [str(conf)]
    assert config.train.plugins.sources[0].text == text


def test_the_plan_says_why_the_plain_step_trains(tmp_path):
    for setting, reason in (
        ({"bias": True}, "bias"),
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
    assert fused_pass.obstacle(sampled) == "train.negative_sampler 'my_uniform'"


WRONG = """
import torch
from graphmill.plugins import COMPARATORS, OPERATORS, REGULARIZERS
from graphmill.plugins import AbstractComparator, AbstractOperator, AbstractRegularizer


@OPERATORS.register_as("gives_nothing")
class GivesNothing(AbstractOperator):
    def forward(self, embeddings):
        pass


@OPERATORS.register_as("cuts_gradients")
class CutsGradients(AbstractOperator):
    def forward(self, embeddings):
        return embeddings.detach()


class Comparator(AbstractComparator):
    def prepare(self, embs):
        return embs

    def forward(self, lhs_pos, rhs_pos, lhs_neg, rhs_neg):
        return {"gives_numbers": (1, 2), "gives_one": 3}[self.name]


class Regularizer(AbstractRegularizer):
    def forward(self, src_pos, dst_pos, operator):
        return {"gives_no_cost": None, "gives_costs": src_pos.sum(-1)}[self.name]

    def forward_dynamic(self, src_pos, dst_pos, operator, rel_idxs):
        return self.forward(src_pos, dst_pos, operator)


for given in ("gives_no_cost", "gives_costs"):
    REGULARIZERS.register_as(given)(type(given, (Regularizer,), {"name": given}))
for given in ("gives_numbers", "gives_one"):
    COMPARATORS.register_as(given)(type(given, (Comparator,), {"name": given}))
"""


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("gives_nothing", r"operator 'gives_nothing': expected vectors of shape .* as they came, found \(\)"),
        ("cuts_gradients", r"no gradient comes through a plug-in; graphmill\.plugins\.check"),
        ("gives_numbers", r"comparator 'gives_numbers': expected scores of shapes .*, found \[\(\), \(\)\]"),
        ("gives_one", r"comparator 'gives_one': expected scores of shapes .*, found \[\(\)\]"),
        ("gives_no_cost", "regularizer 'gives_no_cost': expected one number, found None"),
        ("gives_costs", r"regularizer 'gives_costs': expected one number, found tensor\("),
    ],
)
def test_results_that_training_cannot_use_are_refused(tmp_path, rng, wrong, told):
    (tmp_path / "wrong.py").write_text(WRONG)
    part = {told.partition(" ")[0].replace("no", "operator"): wrong}
    train = {"plugins": [str(tmp_path / "wrong.py")]}
    relations = [relation(part.pop("operator", "complex_diagonal"))]
    more = {"relations": relations, "train": train, "regularization_coef": 0.1 * ("regularizer" in part)}
    config = node_graph(tmp_path, rng, num_epochs=1, **more, **part)
    with pytest.raises(ConfigError, match=told):
        job.train(config)


def test_an_installed_package_needs_no_key(tmp_path, forked):
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
    forked("python", "-c", program, cwd=tmp_path)
