"""Queries of known edges, which must go on to find their own answers: a new id is one of their negatives.

Without them new ids would push themselves before all others, since nothing else holds them back.

Shapes: B ids, Q queries, D dimension, N entities of a sample.
"""

import math
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from graphmill.ask.entities import Numbers
from graphmill.ask.fold_in.comparison import weighted_softplus
from graphmill.ask.fold_in.frozen import FrozenModel, RelationEdges
from graphmill.ask.fold_in.new_edges import groups, relation_of_rows
from graphmill.ask.relation import Relation
from graphmill.model import comparators
from graphmill.model.losses import loss_gradient
from graphmill.model.registry import COMPARATORS
from graphmill.vocab import Side

ROWS = 256
"""Ids whose scores with all queries, 512 or so, stay in a core's cache."""


@dataclass(frozen=True, eq=False)
class OtherQueries:
    """Queries of known edges that a new id may be a wrong answer to.

    Attributes:
        relation: whose operator transforms the answers, if any does.
        side: of the answers.
        query_QD: prepared vectors.
        offset_Q: score from which on a wrong answer costs: of all others together, or of the right one.
        weight_Q: edges that a query stands for, times the share of them that compares itself with the id.
    """

    relation: Relation
    side: Side
    query_QD: Tensor
    offset_Q: Tensor
    weight_Q: Tensor


def loss_as_others(model: FrozenModel, queries: OtherQueries, vectors_BD: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the losses [B] of ids as negatives of other queries, and their gradients [B, D]."""
    leaf_BD = vectors_BD.detach()
    if not queries.relation.has_slopes:
        leaf_BD.requires_grad_()
    own_BD = queries.relation.candidates(queries.side, leaf_BD)
    is_product = comparators.is_dot(model.config.comparator, model.config.bias)
    if is_product:
        score_BQ = own_BD.detach() @ queries.query_QD.mT
    else:
        score_BQ = queries.relation.matrix_scores(queries.side, queries.query_QD, own_BD).mT
    loss_B, slope_BQ = _losses(model, queries, score_BQ.detach().contiguous())
    if not is_product:
        return loss_B, torch.autograd.grad(score_BQ, [leaf_BD], slope_BQ)[0]
    slope_BD = slope_BQ @ queries.query_QD
    if queries.relation.has_slopes:
        return loss_B, queries.relation.candidate_slopes(queries.side, slope_BD)
    if own_BD is not leaf_BD:
        (slope_BD,) = torch.autograd.grad(own_BD, [leaf_BD], slope_BD)
    return loss_B, slope_BD


def _losses(model: FrozenModel, queries: OtherQueries, score_BQ: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the losses [B] of scores, and their slopes [B, Q]; may overwrite the scores."""
    loss_fn, temperature = model.config.loss_fn, model.temperature
    if loss_fn in ("softmax", "logistic"):
        loss_B, slope_BQ = weighted_softplus(score_BQ, queries.offset_Q, queries.weight_Q, temperature)
        return loss_B * temperature, slope_BQ
    if loss_fn == "ranking":
        gap_BQ = (score_BQ - queries.offset_Q).div_(temperature)
        loss_BQ, slope_BQ = gap_BQ.clamp_min(0), (gap_BQ > 0).to(gap_BQ.dtype)
    else:
        pos_1P = (queries.offset_Q / temperature).expand_as(score_BQ).reshape(1, -1)
        neg_1P1 = (score_BQ / temperature).reshape(1, -1, 1)
        gradient = loss_gradient(loss_fn, model.config.margin, pos_1P, neg_1P1, torch.ones_like(pos_1P))
        loss_BQ, slope_BQ = torch.zeros_like(score_BQ), gradient.neg_CPM.view_as(score_BQ)
    return (loss_BQ @ queries.weight_Q) * temperature, slope_BQ.mul_(queries.weight_Q)


def other_queries(model: FrozenModel, entity_type: str) -> list[OtherQueries]:
    """Make queries of the sample's edges whose answers are of this type."""
    queries = [
        _queries(model, entity_type, edges, rows, side)
        for types, edges in model.edges.items()
        for side, name in zip(Side, types, strict=True)
        if name == entity_type and model.is_asked(side) and set(edges.vectors) == set(Side)
        for rows in groups(model, edges.relation_E, np.full(len(edges), side is Side.RHS))
    ]
    return [_joined(list(several)) for _, several in groupby(sorted(queries, key=_together), key=_together)]


def _together(queries: OtherQueries) -> tuple[str, int]:
    """Queries with the same key have one operator of answers, or none, and compare in the same way."""
    is_plain = queries.relation.is_two_sided or queries.side is Side.LHS
    side = "any" if is_plain and queries.relation.comparator in COMPARATORS.built_in else str(queries.side)
    return side, -1 if is_plain else queries.relation.number


def _joined(several: list[OtherQueries]) -> OtherQueries:
    names = ("query_QD", "offset_Q", "weight_Q")
    columns = (torch.cat([getattr(queries, name) for queries in several]) for name in names)
    return OtherQueries(several[0].relation, several[0].side, *columns)


def _queries(
    model: FrozenModel, entity_type: str, edges: RelationEdges, rows: Numbers, side: Side
) -> OtherQueries:
    relation_Q = edges.relation_E[rows]
    relation, number = relation_of_rows(model, relation_Q), int(relation_Q[0])
    sample, num_negatives = model.samples[entity_type], model.num_negatives(number, side)
    query_QD = relation.queries(side, torch.from_numpy(edges.vectors[side.other][rows]))
    answer_QD = relation.candidates(side, torch.from_numpy(edges.vectors[side][rows]))
    pos_Q = relation.edge_scores(side, query_QD, answer_QD)
    loss_fn, temperature = model.config.loss_fn, model.temperature
    share = num_negatives / sample.num_entities
    if loss_fn == "softmax":
        score_QN = relation.matrix_scores(side, query_QD, relation.candidates(side, sample.more_ND))
        scale = math.log(num_negatives / len(sample.more_ND))
        sum_Q = torch.logsumexp(score_QN / temperature, 1) + scale
        pos_Q = torch.logaddexp(sum_Q, pos_Q / temperature) * temperature
    elif loss_fn == "logistic":
        pos_Q, share = torch.zeros_like(pos_Q), 1 / sample.num_entities
    elif loss_fn == "ranking":
        pos_Q = pos_Q - model.config.margin * temperature
    weight_Q = (
        edges.weight_E[rows] * model.relation_weights(relation_Q) * np.float32(edges.stands_for * share)
    )
    return OtherQueries(relation, side, query_QD, pos_Q, torch.from_numpy(weight_Q.astype(np.float32)))
