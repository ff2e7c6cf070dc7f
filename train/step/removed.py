"""The step that moves the ends of removed edges apart, until they score like pairs that were never edges.

The slope of the loss by the score of an edge says how far the edge is from certain: -1 for the least likely
edge, 0 for a certain one, with softmax and logistic. What is left of it, 1 + slope, pushes a removed edge
down. With softmax that is its probability p among all rows, as in -log(1 - p) (unlikelihood training,
arXiv:1908.04319): an edge that is not likely any more stays where it is. `train.removed_weight` multiplies
it, up to 1, the slope of an added edge that is not known yet. Candidates do not move.

    ranking    the slope is the share of candidates that it scores above by the margin

Shapes: C chunks, P removed edges of a chunk, M candidates.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from graphmill.ask.model import Model
from graphmill.config import Config
from graphmill.model import losses
from graphmill.model.registry import LOSS_FUNCTIONS
from graphmill.vocab import Side
from train.edges.negative_sampling import Block
from train.model import optimizer
from train.step.plain import PlainStep, Scores

NUM_CANDIDATES = 1000


def removing_step(config: Config, model: Model, adagrad: optimizer.Adagrad) -> PlainStep:
    """Make the step for removed edges; it moves nothing where the loss is a plug-in."""
    return PlainStep(_config_of(config), model, adagrad, _slopes)


def _slopes(
    config: Config, scored: Mapping[Side, Scores], block: Block, num_entities: Mapping[Side, int]
) -> tuple[Tensor, list[Tensor | None]]:
    """Compute the slopes of pos_CP of both sides; the loss is not known, and 0."""
    slopes: list[Tensor | None] = []
    for side in (Side.LHS, Side.RHS):
        pos_CP, neg_CPM = (each.detach() for each in scored[side])
        slopes += [_slope(config, pos_CP, neg_CPM, num_entities[side]) * block.weight_CP, None]
    return block.weight_CP.new_zeros(()), slopes


def _slope(config: Config, pos_CP: Tensor, neg_CPM: Tensor, num_entities: int) -> Tensor:
    weight, num_candidates = config.train.removed_weight, neg_CPM.shape[-1]
    if not num_candidates or not weight or config.loss_fn not in LOSS_FUNCTIONS.built_in:
        return torch.zeros_like(pos_CP)
    # with softmax, so many candidates stand for all rows of the table
    offset = math.log(num_entities / NUM_CANDIDATES) if config.loss_fn == "softmax" else 0.0
    found = losses.loss_gradient(
        config.loss_fn, config.margin, pos_CP, neg_CPM + offset, torch.ones_like(pos_CP)
    )
    most = num_candidates if config.loss_fn == "ranking" else 1
    return (weight * (1 + found.pos_CP / most)).clamp_max(1)


def _config_of(config: Config) -> Config:
    """The configuration of the step: drawn candidates, and no cost but that of the edges."""
    relations = tuple(each.model_copy(update={"all_negs": False}) for each in config.relations)
    neutral = {"negative_sampler": None, "relation_prediction": 0.0, "negative_power": 0.0}
    update = {
        "relations": relations,
        "num_batch_negs": 0,
        "num_uniform_negs": NUM_CANDIDATES,
        "regularization_coef": 0.0,
    }
    return config.model_copy(update=update).with_section(config.train.model_copy(update=neutral))
