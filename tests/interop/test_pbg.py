"""PyTorch-BigGraph and this project work on each other's files, and measure the same.

Full, unfiltered ranking with pessimistic ties is what PBG's evaluator does with all_negs and one
partition; only such figures can be equal.
"""

import gzip
import io
import json
import re
import tarfile
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from distributed import Client

from etl import job as etl_job
from graphmill import config as configuration
from graphmill.ask.evaluate import evaluate
from graphmill.checkpoints import pbg
from graphmill.config import Config
from graphmill.errors import ConfigError
from graphmill.formats import edge_buckets
from graphmill.vocab import Bucket
from remap import job as remap_job
from tests import DATA
from tests.commands import Command
from tests.etl.graphs import files_under
from tests.interop.pbg import Pbg, examples, known_to, told
from tests.train.graphs import USUAL
from train import job as train_job
from train import pbg_api
from train.step.held_out import num_in_order

pytestmark = [pytest.mark.interop, pytest.mark.slow]

OPERATORS = ("none", "diagonal", "translation", "linear", "affine", "complex_diagonal")
NAMES = {"pos_rank": "mean_rank", "mrr": "mrr", "r1": "hits@1", "r10": "hits@10", "r50": "hits@50"}

COMMON = USUAL | {"batch_size": 100, "num_batch_negs": 50, "num_uniform_negs": 50}
DYNAMIC = {
    **COMMON,
    "entities": {"user": {"num_partitions": 1}},
    "relations": [{"name": "all", "lhs": "user", "rhs": "user", "operator": "complex_diagonal"}],
    "dynamic_relations": True,
    "global_emb": False,
}
STATIC = {
    **COMMON,
    "entities": {"user": {"num_partitions": 1}, "item": {"num_partitions": 1}},
    "relations": [
        {"name": f"r{number}", "lhs": "user", "rhs": ("user", "item")[number % 2], "operator": operator}
        for number, operator in enumerate(OPERATORS)
    ],
    "global_emb": True,
}
ENSEMBLE = {**STATIC, "train": {"ensemble": 2}}


def _graph(raw: Mapping[str, Any], root: Path, near_client: Client, num_partitions: int = 1) -> Config:
    """Raw triples of a graph that can be learned, through our ETL: neighbours on a ring are linked."""
    rng = np.random.default_rng(0)
    lhs = rng.integers(0, 120, 1500)
    rel = rng.integers(0, len(OPERATORS), 1500)
    rhs = (lhs + 5 * rel + rng.integers(0, 4, 1500)) % 120
    lines = (f"n{a}\tr{r}\tn{b}\n" for a, r, b in zip(lhs, rel, rhs, strict=True))
    root.mkdir(parents=True, exist_ok=True)
    (root / "train.tsv").write_text("".join(lines))
    table = {"path": str(root / "train.tsv"), "header": False, "lhs": 0, "relation_column": 1, "rhs": 2}
    graph = {
        "entities": {name: {"num_partitions": num_partitions} for name in raw["entities"]},
        "output": str(root),
        "etl": {"tables": [table]},
        "evaluate": {"split": "train", "filtered": False},
    }
    config = configuration.from_mapping({**raw, **graph})
    etl_job.run(config, near_client)
    return config


def _all_negs(config: Config) -> dict[str, Any]:
    """PBG's settings for an evaluation against all entities."""
    settings = config.pbg()
    for relation in settings["relations"]:
        relation["all_negs"] = True
    return settings | {"num_uniform_negs": 0, "num_batch_negs": 0}


def _same_figures(config: Config, theirs: Mapping[str, float]) -> dict[str, float]:
    ours = evaluate.evaluate(config)["metrics"]
    assert ours["num_edges"] == theirs["count"]
    for name, own in NAMES.items():
        assert ours[f"{own}_pessimistic"] == pytest.approx(theirs[name], rel=1e-4, abs=1e-4), name
    return ours


def test_both_measure_our_ensemble_the_same(tmp_path: Path, near_client: Client, any_python: Path) -> None:
    config = _graph(ENSEMBLE, tmp_path / "run", near_client)
    train_job.run(config, near_client)
    found = _same_figures(config, Pbg(any_python, tmp_path / "pbg").evaluate(_all_negs(config)))
    assert found["mrr"] > 2 * 0.045  # of 120 entities at random: H(120) / 120


def _train_in_turn(config, theirs, client, num_epochs, *, is_theirs):
    """Train up to so many epochs, one version each, by PBG or by ours; return the configuration of that."""
    config = config.model_copy(update={"num_epochs": num_epochs})
    if is_theirs:
        theirs.train(config.pbg())
    else:
        train_job.run(config, client)
    assert pbg.read_version(config.checkpoint_path) == num_epochs
    return config


# One class for both: they train and measure with the same plug-ins, but for the import lines.
THEIR_IMPORTS = """
from torchbiggraph.losses import LOSS_FUNCTIONS, AbstractLossFunction
from torchbiggraph.model import (
    COMPARATORS, DYNAMIC_OPERATORS, OPERATORS, AbstractComparator, AbstractDynamicOperator, AbstractOperator,
)
"""
OUR_IMPORTS = """
from train.pbg_api import (
    COMPARATORS, DYNAMIC_OPERATORS, LOSS_FUNCTIONS, OPERATORS, AbstractComparator, AbstractDynamicOperator,
    AbstractLossFunction, AbstractOperator,
)
"""
CODE = """
import torch
from torch import nn


@OPERATORS.register_as("shift_and_scale")
class ShiftAndScale(AbstractOperator):
    def __init__(self, dim: int):
        super().__init__(dim)
        self.shift = nn.Parameter(torch.zeros((self.dim,)))
        self.scale = nn.Parameter(torch.ones((self.dim,)))

    def forward(self, embeddings):
        return self.scale * embeddings + self.shift


@DYNAMIC_OPERATORS.register_as("shift_and_scale")
class ShiftAndScaleDynamic(AbstractDynamicOperator):
    def __init__(self, dim: int, num_operations: int):
        super().__init__(dim, num_operations)
        self.shift = nn.Parameter(torch.zeros((self.num_operations, self.dim)))
        self.scale = nn.Parameter(torch.ones((self.num_operations, self.dim)))

    def forward(self, embeddings, operator_idxs):
        return self.scale[operator_idxs] * embeddings + self.shift[operator_idxs]


@COMPARATORS.register_as("half_dot")
class HalfDot(AbstractComparator):
    def prepare(self, embs):
        return embs * 0.5

    def forward(self, lhs_pos, rhs_pos, lhs_neg, rhs_neg):
        pos_scores = (lhs_pos * rhs_pos).sum(-1)
        lhs_neg_scores = torch.bmm(rhs_pos, lhs_neg.transpose(-1, -2))
        rhs_neg_scores = torch.bmm(lhs_pos, rhs_neg.transpose(-1, -2))
        return pos_scores, lhs_neg_scores, rhs_neg_scores


@LOSS_FUNCTIONS.register_as("own_softmax")
class OwnSoftmax(AbstractLossFunction):
    def forward(self, pos_scores, neg_scores):
        if neg_scores.shape[1] == 0:
            return torch.zeros((), requires_grad=True)
        scores = torch.cat([pos_scores.unsqueeze(1), neg_scores], 1)
        return (scores.logsumexp(1) - pos_scores).sum()


"""


def _plugged(relations: Mapping[str, Any]) -> dict[str, Any]:
    """A graph whose operator, comparator and loss are plug-ins."""
    names = [each | {"rhs": "user", "operator": "shift_and_scale"} for each in relations["relations"]]
    entities = {"user": {"num_partitions": 1}}
    graph = {**relations, "relations": names, "entities": entities, "global_emb": False}
    return graph | {"comparator": "half_dot", "loss_fn": "own_softmax", "train": {"on_change": "resume"}}


GRAPHS = {"dynamic": DYNAMIC, "static": STATIC}
GRAPHS |= {f"{name} with plug-ins": _plugged(graph) for name, graph in GRAPHS.items()}


@pytest.mark.parametrize("name", GRAPHS)
def test_both_resume_each_other_s_training_and_measure_the_same(tmp_path, near_client, any_python, name):
    """Ours trains 2 epochs, PBG 2 more, ours the last 2; optimizer states included."""
    raw, code = GRAPHS[name], ""
    if "plug-ins" in name:
        (tmp_path / "plug_ins.py").write_text(OUR_IMPORTS + CODE)
        raw = raw | {"train": raw["train"] | {"plugins": [str(tmp_path / "plug_ins.py")]}}
        code = THEIR_IMPORTS + CODE
    config = _graph(raw, tmp_path / "run", near_client)
    theirs = Pbg(any_python, tmp_path / "pbg", code)
    mrr, sums = [], []
    for num_epochs in (2, 4, 6):
        config = _train_in_turn(config, theirs, near_client, num_epochs, is_theirs=num_epochs == 4)
        _, of_table = pbg.read_embeddings(config.checkpoint_path, "user", 0, num_epochs)
        parameters, of_model, _ = pbg.read_model(config.checkpoint_path, num_epochs)
        assert not code or parameters.keys() >= {"rhs_operators.0.shift", "rhs_operators.0.scale"}
        sums.append([of_table["state"][0]["sum"], *(each["sum"] for each in of_model["state"].values())])
        mrr.append(_same_figures(config, theirs.evaluate(_all_negs(config)))["mrr"])
    assert mrr[2] > mrr[1] > mrr[0] > 2 * 0.045
    for before, now in pairwise(sums):  # Adagrad's sums only grow: nobody started anew
        assert all((one <= other).all() for one, other in zip(before, now, strict=True))
        assert sum(each.sum() for each in now[1:]) > sum(each.sum() for each in before[1:])
        assert now[0].sum() > before[0].sum()
    assert len(pbg.read_stats(config.checkpoint_path)) == 6


def _vectors_of(config: Config, path: str) -> dict[tuple[str, int], bytes]:
    """The embeddings of the version that is committed in the folder, by type and partition."""
    version = pbg.read_version(path)
    pbg.read_model(path, version)
    keys = [(name, part) for name, entity in config.entities.items() for part in range(entity.num_partitions)]
    return {key: pbg.read_embeddings(path, *key, version)[0].tobytes() for key in keys}


def test_epochs_that_pbg_has_preserved_stay_readable(tmp_path, near_client, any_python):
    """PBG preserves an epoch by absolute symbolic links to the files of its version."""
    raw = {**DYNAMIC, "num_epochs": 3, "checkpoint_preservation_interval": 1}
    config = _graph(raw, tmp_path / "run", near_client, num_partitions=2)
    Pbg(any_python, tmp_path / "pbg").train(config.pbg())
    epochs = [pbg.epoch_path(config.checkpoint_path, epoch) for epoch in (1, 2, 3)]
    assert all(link.is_symlink() for epoch in epochs for link in Path(epoch).glob("*.h5"))
    before = [_vectors_of(config, epoch) for epoch in epochs]
    assert before[0] != before[1] != before[2]

    for num_epochs in (3, 5):  # nothing to train; two more epochs
        config = config.model_copy(update={"num_epochs": num_epochs})
        figures = train_job.run(config, near_client)
        assert (figures["first_version"], figures["version"]) == (3, num_epochs)
        assert [_vectors_of(config, epoch) for epoch in epochs] == before

    wider = config.model_copy(update={"dimension": 12})  # not resumed: what is there is moved aside
    assert train_job.run(wider, near_client)["first_version"] == 0
    aside = f"{config.checkpoint_path}.stale-1"
    assert [_vectors_of(config, f"{aside}/epoch_{epoch}") for epoch in (1, 2, 3)] == before
    assert len(_vectors_of(wider, epochs[0])) == len(before[0])


SMALL = ["num_epochs=2", "dimension=8", "num_uniform_negs=10", "workers=1"]
COLUMNS = {
    "fb15k_config.py": ["-l", "0", "-r", "2", "--rel-col", "1"],
    "livejournal_config.py": ["-l", "0", "-r", "1"],
}


@pytest.fixture
def example(python, tmp_path, monkeypatch, request):
    """An example of PBG as it ships, in a folder with tables like those of the example."""
    monkeypatch.chdir(tmp_path)
    Path("config.py").write_text((examples(python) / "configs" / request.param).read_text())
    rng = np.random.default_rng(0)
    files = []
    folder = Path("data/FB15k" if "fb15k" in request.param else "data")
    folder.mkdir(parents=True)
    for number, _ in enumerate(configuration.load("config.py").edge_paths):
        edges = [(a, r, (a + 3 * r + 1) % 40) for a, r in rng.integers(0, [40, 3], (150, 2)).tolist()]
        words = [(f"/m/0{a}", f"/people/person/r.{r}", f"/m/0{b}") for a, r, b in edges]
        words = words if "fb15k" in request.param else [(lhs, rhs) for lhs, _, rhs in words]
        files.append(str(folder / f"{number}.txt"))
        Path(files[-1]).write_text("".join("\t".join(each) + "\n" for each in words))
    return COLUMNS[request.param], files


EXAMPLES = pytest.mark.parametrize("example", list(COLUMNS), indirect=True)


@EXAMPLES
def test_we_train_on_what_pbg_has_imported_for_its_example(example, python, tmp_path, near_client):
    columns, files = example
    theirs = Pbg(python, tmp_path / "pbg")
    theirs.call("torchbiggraph.converters.import_from_tsv", *columns, "config.py", *files)
    before = files_under("data")
    entity_path = configuration.load("config.py").entity_path
    for num_epochs in (2, 3):  # in a folder of PBG's input: a checkpoint there is no other input
        config = configuration.load(
            "config.py", [*SMALL, f"checkpoint_path={entity_path}/model", f"num_epochs={num_epochs}"]
        )
        assert train_job.run(config, near_client)["first_version"] == (num_epochs - 2) * 2 * len(
            config.edge_paths
        )
        Path(entity_path, "notes.txt").write_text(str(num_epochs))
    assert evaluate.evaluate(config)["metrics"]["num_edges"] == 150
    remap_job.run(config, near_client)
    (entity_type,) = config.entities
    ids = pq.read_table(f"{config.embedding_path}/{entity_type}")["id"].to_pylist()
    assert sorted(ids) == sorted(f"/m/0{number}" for number in range(40))
    now = files_under("data")
    assert {name: now[name] for name in before} == before


@EXAMPLES
def test_pbg_exports_what_we_have_imported_and_trained(
    example: Any, python: Path, tmp_path: Path, near_client: Client, graphmill_command: Command
) -> None:
    """The vectors and parameters are those of remap; names of relations need no `dynamic_relations`."""
    columns, files = example
    own = files_under(".")
    assert graphmill_command("etl", "config.py", *columns, *files) == 0
    operator = "complex_diagonal" if "--rel-col" in columns else "diagonal"
    config = configuration.load(
        "config.py", [*SMALL, f"relations.0.operator={operator}", "remap.relations=true", "lr=0.1"]
    )
    assert config.split_path("test") == config.edge_paths[-1]
    assert edge_buckets.count_edges(config.split_path("test"), Bucket(0, 0)) == 150
    train_job.run(config, near_client)
    assert evaluate.evaluate(config)["metrics"]["num_edges"] == 150
    remap_job.run(config, near_client)
    now = files_under(".")
    assert {name: now[name] for name in own} == own  # the example's own files stay as they are
    theirs = Pbg(python, tmp_path / "pbg")
    outputs = ["--entities-output", "entities.tsv", "--relation-types-output", "relations.tsv"]
    theirs.call("torchbiggraph.converters.export_to_tsv", str(theirs.written(config.pbg())), *outputs)

    exported = _table("entities.tsv", 1)
    entity_type = next(iter(config.entities))
    ours = pq.read_table(f"{config.embedding_path}/{entity_type}").to_pydict()
    assert {name[0] for name in exported} == set(ours["id"])
    for name, vector in zip(ours["id"], ours["embedding"], strict=True):
        np.testing.assert_allclose(exported[name,], vector, atol=1e-8)
    relations = _table("relations.tsv", 5)
    for row in pq.read_table(f"{config.embedding_path}/_relations.parquet").to_pylist():
        shape = "x".join(map(str, row["shape"]))
        key = row["relation"], row["side"], row["operator"], row["parameter"].removesuffix("s"), shape
        found = relations.get(key) or relations[key[0], key[1], key[2], row["parameter"], shape]
        np.testing.assert_allclose(found, row["values"], atol=1e-8)


def _table(path: str, num_keys: int) -> dict[tuple[str, ...], list[float]]:
    rows = [line.split("\t") for line in Path(path).read_text().splitlines()]
    return {tuple(row[:num_keys]): list(map(float, row[num_keys:])) for row in rows}


# PBG's evaluator on scores with ties and masked negatives, many times: the mean of its auc.
AUC = """
import torch
from torchbiggraph.eval import RankingEvaluator
from torchbiggraph.model import Scores
torch.manual_seed(0)
pos, neg = torch.load("scores.pt")
found = [RankingEvaluator().eval(Scores(pos, pos, neg, -neg), pos).metrics["auc"] for _ in range(400)]
print(sum(found) / len(found) / len(pos))
"""


def test_auc_is_what_pbg_calls_so(python: Path, tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(3)
    pos_P, neg_PM = (torch.randint(6, shape, generator=draw).float() for shape in ((50,), (50, 20)))
    neg_PM[:, 0] = -1e9
    torch.save((pos_P, neg_PM), tmp_path / "scores.pt")
    (tmp_path / "auc.py").write_text(AUC)
    theirs = float(told(python, tmp_path, "auc.py"))
    generator, found = torch.Generator().manual_seed(0), 0
    for _ in range(400):
        for negatives in (neg_PM, -neg_PM):
            found += num_in_order([(pos_P[None], negatives[None])], 1, generator)
    assert found / (2 * 400 * 50) == pytest.approx(theirs, abs=4 * 0.5 * (2 / 40_000) ** 0.5)


FIGURES = re.compile(r"pos_rank:  (\S+) , mrr:  (\S+) , r1:  (\S+) , r10:  (\S+)")
IMPORT = re.compile(r"^from torchbiggraph\.\S+ import", flags=re.MULTILINE)

# The evaluation of a script, with PBG's modules: its whole scripts need an older Python.
EVALUATION = """
import logging, sys, attr
from torchbiggraph.config import ConfigFileLoader
from torchbiggraph.eval import do_eval
from torchbiggraph.filtered_eval import FilteredRankingEvaluator

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    config = ConfigFileLoader().load_config(sys.argv[1], sys.argv[2:])
    relations = [attr.evolve(each, all_negs=True) for each in config.relations]
    paths = config.edge_paths
    config = attr.evolve(config, edge_paths=paths[-1:], relations=relations, num_uniform_negs=0)
    do_eval(config, evaluator=FilteredRankingEvaluator(config, paths))
"""


# What PBG's loader makes of a configuration with each of several lists of `-p`; null where it refuses one.
LOADING = """
import json
from torchbiggraph.config import ConfigFileLoader

def load(overrides):
    try:
        return ConfigFileLoader().load_config("config.py", overrides).to_dict()
    except (Exception, SystemExit):
        return None

print(json.dumps([load(each) for each in json.load(open("lists.json"))]))
"""
CONFIG = {
    "entities": {"user": {"numPartitions": 1}, "item": {"num_partitions": 1, "featurized": 0}},
    "relations": [{"name": "buys", "lhs": "user", "rhs": "item", "all_negs": "Yes"}],
    "dimension": 4,
    "entity_path": "entities",
    "edge_paths": ["edges"],
    "checkpoint_path": "model",
    "bucket_order": "OUTSIDE_IN",
    "globalEmb": "off",
}
TEXTS = [
    *("edge_paths=one", "edge_paths=one,two words", "entity_path=007", "bucket_order=INSIDE_OUT"),
    *("bucket_order=Affinity", "bucket_order=zigzag", "global_emb=Off", "bias=1", "bias=2", "bias=maybe"),
    *("lr=1", "lr=1e-3", "lr=fast", "dimension=8", "dimension=8.0", "dimension=-8", "max_norm=1.5"),
    *("entities.user.num_partitions=4", "entities.new.num_partitions=4", "relations.0.operator=diagonal"),
    *("relations.0.weight=0", "relations.7.weight=1", "relations.0=x", "relations=a,b", "colour=1", "lr"),
    *("init_path=somewhere", "num_epochs=", "eval_fraction=0.5", "disable_lhs_negs=true"),
]


def run(python: Path, text: str, folder: Path, *arguments: str) -> list[float]:
    """Run a program; the last figures that it logs."""
    (folder / "script.py").write_text(text)
    text = told(python, folder, "script.py", *arguments)
    return [float(each) for each in FIGURES.findall(text)[-1]]


def with_our_imports(script: Path) -> str:
    text, changed = IMPORT.subn("from train.pbg_api import", script.read_text())
    assert changed > 4
    assert not re.search(r"^(from|import) torchbiggraph", text, flags=re.MULTILINE)
    return text


def test_fb15k(tmp_path: Path, python: Path) -> None:
    """Import, training and filtered ranking; PBG takes the same files, and measures the same."""
    (tmp_path / "data").mkdir()
    rng = np.random.default_rng(0)
    with tarfile.open(tmp_path / "data" / "fb15k.tgz", "w:gz") as archive:
        for name, count in (("train", 400), ("valid", 40), ("test", 40)):
            triples = rng.integers(0, [30, 5, 30], (count, 3))
            text = "".join(f"/m/{lhs}\t/people/r{rel}\t/m/{rhs}\n" for lhs, rel, rhs in triples).encode()
            member = tarfile.TarInfo(f"FB15k/freebase_mtr100_mte100-{name}.txt")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    params = ("num_epochs=2", "dimension=20", "num_uniform_negs=20", "workers=1")
    ours = run(python, with_our_imports(examples(python) / "fb15k.py"), tmp_path, "-p", *params)
    config = str(examples(python) / "configs" / "fb15k_config.py")
    assert ours == pytest.approx(run(python, EVALUATION, tmp_path, config, *params), rel=1e-4)
    assert (tmp_path / "model" / "fb15k" / "checkpoint_version.txt").read_text().strip() == "2"


def test_livejournal(tmp_path: Path, python: Path) -> None:
    """Its evaluation draws candidates at random: a trained model ranks its edges above them."""
    (tmp_path / "data").mkdir()
    blocks = [(lhs, rhs) for lhs in range(60) for rhs in range(60) if lhs % 6 == rhs % 6]
    text = "# a comment\n" * 4 + "".join(f"{lhs}\t{rhs}\n" for lhs, rhs in blocks)
    (tmp_path / "data" / "soc-LiveJournal1.txt.gz").write_bytes(gzip.compress(text.encode()))
    params = ("num_epochs=20", "dimension=16", "workers=1", "lr=0.1", "batch_size=50")
    rank, *_ = run(python, with_our_imports(examples(python) / "livejournal.py"), tmp_path, "-p", *params)
    assert rank < 30  # of 100
    assert (tmp_path / "model" / "livejournal" / "checkpoint_version.txt").read_text().strip() == "20"


def test_the_loader_and_p_mean_the_same(tmp_path: Path, python: Path) -> None:
    """Every key and default of release 1.0.0, and each text of -p: the same value, or refused by both."""
    path = tmp_path / "config.py"
    path.write_text(f"def get_torchbiggraph_config():\n    return {CONFIG!r}\n")
    (tmp_path / "load.py").write_text(LOADING)
    lists = [[], *([text] for text in TEXTS), ["disable_lhs_negs=y", "disable_rhs_negs=y"]]
    (tmp_path / "lists.json").write_text(json.dumps(lists))
    theirs = json.loads(told(python, tmp_path, "load.py").splitlines()[-1])
    keys = json.loads((DATA / "pbg_keys.json").read_text())["config"]
    assert list(theirs[0]) == [key for key, fact in keys.items() if fact["since"] == "1.0.0"]
    loader = pbg_api.ConfigFileLoader()
    for overrides, expected in zip(lists, theirs, strict=True):
        try:
            found = loader.load_config(str(path), overrides).to_dict()
        except ConfigError:
            found = None
        assert (found and known_to(python, found)) == expected, overrides
    assert 8 < theirs.count(None) < len(theirs) / 2
