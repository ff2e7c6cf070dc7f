"""Scores of new ids and their gradients, in chunks of one size.

The loss of an edge is that of training. As the query, the new id and its relation have to find the known
end among the sample. As the answer, the new id has to be found by the known end. The scores of the known end
against the sample do not move, and are computed once:

    softmax     one number stands for all of them, the log of their sum of exp
    logistic    their loss does not move the new id
    ranking     all of them

All products have the same number of rows, the last of which may be empty: an id has the same result beside
any others. Where many queries are summed, loops of softplus.cpp compute log(1 + exp(gap)) and its slope;
without them torch does the same in a dozen passes.

Shapes: E edges of a chunk, M entities of a sample, D dimension, X scores that stand for the sample, B ids,
Q queries.
"""

import math
from collections.abc import Callable
from ctypes import c_float, c_int64, c_void_p
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from graphmill.ask.fold_in.frozen import FrozenModel
from graphmill.ask.fold_in.new_edges import NewEdges, groups, relation_of_rows, side_of
from graphmill.ask.relation import Relation
from graphmill.machine import native
from graphmill.model import comparators
from graphmill.model.losses import loss_gradient
from graphmill.model.plug_ins import MASKED
from graphmill.sorted_arrays import positions
from graphmill.vocab import Side

SOURCE = Path(__file__).with_name("softplus.cpp")

_LARGEST_GAP = 80.0  # whose exp is a float32
_MASKED = torch.tensor(MASKED)

library = native.loader(
    SOURCE,
    {"softplus": (None, [*[c_void_p] * 3, c_float, *[c_int64] * 2, c_void_p])},
    name="fold-in",
    instead="torch computes the losses",
)


def softplus(gap: Tensor) -> tuple[Tensor, Tensor]:
    """Compute log(1 + exp(gap)) and its slope, faster than by torch's log1p; overwrites the gaps."""
    exp = gap.clamp_max_(_LARGEST_GAP).exp_()
    total = exp + 1
    lost = (total - 1).sub_(exp).div_(total)  # what the rounding of the total has added
    return torch.log(total).sub_(lost), exp.div_(total)


def weighted_softplus(
    score_BQ: Tensor, offset_Q: Tensor, weight_Q: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Sum weight x log(1 + exp((score - offset) / temperature)) of each id [B]; and its slopes [B, Q].

    Overwrites the scores, which are contiguous.
    """
    compiled = library()
    if compiled is None:
        loss_BQ, slope_BQ = softplus(score_BQ.sub_(offset_Q).div_(temperature))
        return loss_BQ @ weight_Q, slope_BQ.mul_(weight_Q)
    loss_B = score_BQ.new_empty(len(score_BQ))
    pointers = [tensor.data_ptr() for tensor in (score_BQ, offset_Q, weight_Q)]
    compiled.graphmill_softplus(*pointers, 1 / temperature, *score_BQ.shape, loss_B.data_ptr())
    return loss_B, score_BQ


class Scored(NamedTuple):
    """Scores of edges and of their negatives.

    Attributes:
        pos_E: of the edges.
        neg_EX: of negatives; each stands for exp(log_scale) ones.
        own_ED: the new ids' prepared vectors.
        right_ED: those of the known ends.
        wrong_XD: those of the negatives, if their scores move with the new id.
        slopes: gradients with respect to the new ids' vectors, from those of the prepared ones.
    """

    pos_E: Tensor
    neg_EX: Tensor
    log_scale: float
    own_ED: Tensor
    right_ED: Tensor
    wrong_XD: Tensor | None
    slopes: Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class QueryChunk:
    """Edges whose scores one call computes.

    Attributes:
        relation: with parameters of all edges, or a row for each.
        side: that of the new ids.
        num: edges; rows from here on are empty.
        id_E: position of each edge's new id.
        weight_E: factor of the loss, 0 for an empty row.
        known_ED: the known ends, as candidates; None if training did not ask for their side.
        sample_MD: the sample of their type, as candidates.
        own: rows and columns of the known ends that are in the sample.
        log_scales: for the known ends and for the new ids as answers.
        query_ED: the known ends, as queries; None if training did not ask for the side of the new ids.
        other_EX: scores of these queries that stand for the sample of the new ids' type.
        is_product: whether scores are products of prepared vectors, whose gradients are known.
    """

    relation: Relation
    side: Side
    num: int
    id_E: Tensor
    weight_E: Tensor
    known_ED: Tensor | None
    sample_MD: Tensor
    own: tuple[Tensor, Tensor]
    log_scales: tuple[float, float]
    query_ED: Tensor | None
    other_EX: Tensor
    is_product: bool

    def as_queries(self, vectors_ED: Tensor) -> Scored | None:
        """Score the new ids as queries."""
        if self.known_ED is None:
            return None
        other = self.side.other
        own_ED = self.relation.queries(other, vectors_ED)
        compared_ED = own_ED.detach() if self.is_product else own_ED
        score_EM = self.relation.matrix_scores(other, compared_ED, self.sample_MD)
        score_EM.detach().index_put_(self.own, _MASKED)
        pos_E = self.relation.edge_scores(other, compared_ED, self.known_ED)
        slopes = partial(self.relation.query_slopes, other)
        return Scored(pos_E, score_EM, self.log_scales[0], own_ED, self.known_ED, self.sample_MD, slopes)

    def as_answers(self, vectors_ED: Tensor) -> Scored | None:
        """Score the new ids as answers."""
        if self.query_ED is None:
            return None
        own_ED = self.relation.candidates(self.side, vectors_ED)
        compared_ED = own_ED.detach() if self.is_product else own_ED
        pos_E = self.relation.edge_scores(self.side, self.query_ED, compared_ED)
        slopes = partial(self.relation.candidate_slopes, self.side)
        return Scored(pos_E, self.other_EX, self.log_scales[1], own_ED, self.query_ED, None, slopes)


def loss_and_gradient(model: FrozenModel, chunk: QueryChunk, vectors_BD: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the losses of a chunk's edges [E], and their gradients with respect to the vectors [E, D]."""
    leaf_ED = vectors_BD.index_select(0, chunk.id_E)
    has_slopes = chunk.is_product and chunk.relation.has_slopes
    if not has_slopes:
        leaf_ED.requires_grad_()
    loss_E, slope_ED = torch.zeros(len(leaf_ED)), None
    outputs: list[Tensor] = []
    slopes: list[Tensor] = []
    for scored in filter(None, (chunk.as_queries(leaf_ED), chunk.as_answers(leaf_ED))):
        loss, pos_E, neg_EX = _losses(model, scored, chunk.weight_E)
        loss_E += loss
        if chunk.is_product:
            own_ED = scored.right_ED * pos_E[:, None]
            if scored.wrong_XD is not None:
                own_ED.addmm_(neg_EX, scored.wrong_XD)
            if has_slopes:
                own_ED = scored.slopes(own_ED)
                slope_ED = own_ED if slope_ED is None else slope_ED.add_(own_ED)
            else:
                outputs.append(scored.own_ED)
                slopes.append(own_ED)
        else:
            outputs += [scored.pos_E] if scored.wrong_XD is None else [scored.pos_E, scored.neg_EX]
            slopes += [pos_E] if scored.wrong_XD is None else [pos_E, neg_EX]
    if outputs:
        (slope_ED,) = torch.autograd.grad(outputs, [leaf_ED], slopes)
    return loss_E, torch.zeros_like(leaf_ED) if slope_ED is None else slope_ED


def _losses(model: FrozenModel, scored: Scored, weight_E: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    config = model.config
    if config.loss_fn == "softmax" and scored.wrong_XD is None:  # one number stands for the negatives
        gap_E = (scored.neg_EX[:, 0] - scored.pos_E.detach()).div_(model.temperature)
        loss_E, slope_E = softplus(gap_E)
        return loss_E.mul_(weight_E).mul_(model.temperature), slope_E.mul_(weight_E).neg_(), scored.neg_EX
    neg_EX = scored.neg_EX.detach() / model.temperature
    if config.loss_fn == "softmax":
        neg_EX += scored.log_scale
    elif config.loss_fn == "ranking":
        weight_E = weight_E * math.exp(scored.log_scale)
    pos_E = scored.pos_E.detach() / model.temperature
    gradient = loss_gradient(config.loss_fn, config.margin, pos_E[None], neg_EX[None], weight_E[None])
    # A loss of the user's is one sum of all edges, which tells nothing of an id.
    loss_E = gradient.loss_CP[0] * model.temperature if gradient.loss_CP.dim() else torch.zeros_like(weight_E)
    return loss_E, gradient.pos_CP[0], gradient.neg_CPM[0]


def beaten_shares(chunk: QueryChunk, vectors_BD: Tensor) -> Tensor:
    """The share of the sample that each edge's known end scores above, [E]; 1 where training did not ask."""
    scored = chunk.as_queries(vectors_BD[chunk.id_E])
    if scored is None:
        return torch.ones(len(chunk.id_E))
    others_E = (scored.neg_EX > MASKED).sum(1).clamp_min(1)
    beaten_E = ((scored.neg_EX < scored.pos_E[:, None]) & (scored.neg_EX > MASKED)).sum(1)
    return beaten_E / others_E


def chunks(model: FrozenModel, entity_type: str, edges: NewEdges, rows: int) -> list[QueryChunk]:
    """Cut the edges of ids of a type into chunks of `rows`."""
    return [
        _chunk(model, entity_type, edges.take(group[start : start + rows]), rows)
        for group in groups(model, edges.relation_E, edges.is_rhs_E)
        for start in range(0, len(group), rows)
    ]


def _chunk(model: FrozenModel, entity_type: str, edges: NewEdges, rows: int) -> QueryChunk:
    num = len(edges.id_E)
    edges = edges.take(np.concatenate([np.arange(num), np.zeros(rows - num, np.int64)]))
    number, side = int(edges.relation_E[0]), side_of(int(edges.is_rhs_E[0]))
    relation, other = relation_of_rows(model, edges.relation_E), side.other
    weight_E = torch.from_numpy(edges.weight_E * model.relation_weights(edges.relation_E))
    weight_E[num:] = 0
    known_ED = torch.from_numpy(np.ascontiguousarray(edges.known_ED))
    known, sample = model.samples[model.type_of(number, other)], model.samples[entity_type]
    query_ED = relation.queries(side, known_ED) if model.is_asked(side) else None
    scales = tuple(
        math.log(model.num_negatives(number, end) / max(len(of_side.numbers), 1))
        for end, of_side in ((other, known), (side, sample))
    )
    place_E = positions(known.numbers.numpy(), edges.known_E[:num])
    own_E = np.flatnonzero(place_E >= 0)
    return QueryChunk(
        relation=relation,
        side=side,
        num=num,
        id_E=torch.from_numpy(np.array(edges.id_E)),
        weight_E=weight_E,
        known_ED=relation.candidates(other, known_ED) if model.is_asked(other) else None,
        sample_MD=relation.candidates(other, known.vectors_MD),
        own=(torch.from_numpy(own_E), torch.from_numpy(place_E[own_E])),
        log_scales=(scales[0], 0.0 if model.config.loss_fn == "softmax" else scales[1]),
        query_ED=query_ED,
        other_EX=_standing(model, relation, side, query_ED, sample.vectors_MD, scales[1]),
        is_product=comparators.is_dot(model.config.comparator, model.config.bias),
    )


def _standing(
    model: FrozenModel,
    relation: Relation,
    side: Side,
    query_ED: Tensor | None,
    sample_MD: Tensor,
    log_scale: float,
) -> Tensor:
    """The scores that stand for the sample where the new ids are answers."""
    if query_ED is None or model.config.loss_fn == "logistic":
        return sample_MD.new_zeros((1, 1) if query_ED is None else (len(query_ED), 1))
    score_EM = relation.matrix_scores(side, query_ED, relation.candidates(side, sample_MD))
    if model.config.loss_fn != "softmax":
        return score_EM
    total_E1 = torch.logsumexp(score_EM / model.temperature, 1, keepdim=True) + log_scale
    return total_E1 * model.temperature
