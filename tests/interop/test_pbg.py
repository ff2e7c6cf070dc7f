"""PyTorch-BigGraph and this project work on each other's files, and measure the same.

Full, unfiltered ranking with pessimistic ties is what PBG's evaluator does with all_negs and one
partition; only such figures can be equal.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distributed import Client

from etl import job as etl_job
from graphmill import config as configuration
from graphmill.ask.evaluate import evaluate
from graphmill.checkpoints import pbg
from graphmill.config import Config
from tests.interop.pbg import Pbg
from tests.train.graphs import USUAL
from train import job as train_job

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


@pytest.mark.parametrize("raw", [DYNAMIC, STATIC], ids=["dynamic", "static"])
def test_both_resume_each_other_s_training_and_measure_the_same(tmp_path, near_client, any_python, raw):
    """Ours trains 2 epochs, PBG 2 more, ours the last 2; optimizer states included."""
    config = _graph(raw, tmp_path / "run", near_client)
    theirs = Pbg(any_python, tmp_path / "pbg")
    mrr, sums = [], []
    for num_epochs in (2, 4, 6):
        config = _train_in_turn(config, theirs, near_client, num_epochs, is_theirs=num_epochs == 4)
        _, state = pbg.read_embeddings(config.checkpoint_path, "user", 0, num_epochs)
        sums.append(state["state"][0]["sum"])
        mrr.append(_same_figures(config, theirs.evaluate(_all_negs(config)))["mrr"])
    assert mrr[2] > mrr[1] > mrr[0] > 2 * 0.045
    # Adagrad's sums only grow: nobody started anew.
    assert (sums[1] >= sums[0]).all()
    assert (sums[2] >= sums[1]).all()
    assert sums[2].sum() > sums[1].sum() > sums[0].sum()
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


@pytest.mark.parametrize("dynamic", [False, True])
def test_both_go_on_with_each_other_s_training(tmp_path, near_client, python, dynamic):
    """Ours trains an epoch, PBG the second, ours the third; optimizer states included."""
    file = tmp_path / "plug_ins.py"
    file.write_text(OUR_IMPORTS + CODE)
    names = ["all"] if dynamic else [f"r{number}" for number in range(6)]
    relations = [{"name": n, "lhs": "user", "rhs": "user", "operator": "shift_and_scale"} for n in names]
    raw: dict[str, Any] = COMMON | {
        "entities": {"user": {"num_partitions": 1}},
        "relations": relations,
        "dynamic_relations": dynamic,
        "global_emb": False,
        "comparator": "half_dot",
        "loss_fn": "own_softmax",
        "train": {"plugins": [str(file)], "on_change": "resume"},
    }
    config = _graph(raw, tmp_path / "run", near_client)
    theirs = Pbg(python, tmp_path / "pbg", THEIR_IMPORTS + CODE)
    sums = []
    for epochs in (1, 2, 3):
        config = _train_in_turn(config, theirs, near_client, epochs, is_theirs=epochs == 2)
        state, optimizer, _ = pbg.read_model(config.checkpoint_path, epochs)
        assert state.keys() >= {"rhs_operators.0.shift", "rhs_operators.0.scale"}
        sums.append(torch.stack([each["sum"].sum() for each in optimizer["state"].values()]).sum())
    assert sums == sorted(sums)
    assert _same_figures(config, theirs.evaluate(_all_negs(config)))["mrr"] > 0.09  # at random: 0.045
