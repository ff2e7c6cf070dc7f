"""One class for both: PBG and GraphMill train and measure with the same plug-ins, but for the import line."""

from pathlib import Path
from typing import Any

import distributed
import pytest
import torch

from graphmill.checkpoints import pbg
from tests.interop.pbg import Pbg
from tests.interop.test_pbg import COMMON, _all_negs, _graph, _same_figures
from train import job as train_job

pytestmark = [pytest.mark.interop, pytest.mark.slow]

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
def test_both_go_on_with_each_other_s_training(
    tmp_path: Path, near_client: distributed.Client, python: Path, dynamic: bool
) -> None:
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
        config = config.model_copy(update={"num_epochs": epochs})
        if epochs == 2:
            theirs.train(config.pbg())
        else:
            train_job.run(config, near_client)
        version = pbg.read_version(config.checkpoint_path)
        assert version == epochs
        state, optimizer, _ = pbg.read_model(config.checkpoint_path, version)
        assert state.keys() >= {"rhs_operators.0.shift", "rhs_operators.0.scale"}
        assert optimizer is not None
        sums.append(torch.stack([each["sum"].sum() for each in optimizer["state"].values()]).sum())
    assert sums == sorted(sums)
    assert _same_figures(config, theirs.evaluate(_all_negs(config)))["mrr"] > 0.09  # at random: 0.045
