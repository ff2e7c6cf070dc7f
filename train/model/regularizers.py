"""Costs beside the loss of edges: regularizers and relation prediction.

A penalty is that of edges, as at PBG's HEAD: once with the operator of each side that has one. Autograd
carries the gradients of users' regularizers, and of N3 on users' operators. N3 on built-in operators has a
closed form.

Relation prediction is the cross entropy of an edge's relation among all relations, once for each operator of
an edge (`train.relation_prediction`, arXiv:2110.02834):

    loss   weight x (log Z - score(lhs, relation, rhs))
    Z      sum over all relations r of exp score(lhs, r, rhs)

The score of a diagonal operator is linear in its parameters, and vectors of one operator act like operators:

    entity r . answer = conj(entity) answer . r

Shapes: E edges, D dimension, P edges, R relations.
"""

from collections.abc import Sequence
from functools import cache, partial, reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from graphmill.ask.model import Model
from graphmill.config import Config
from graphmill.errors import ConfigError
from graphmill.model.abstract import AbstractRegularizer
from graphmill.model.built_in import split
from graphmill.model.losses import n3
from graphmill.model.operators import OPERATORS, operator_of
from graphmill.model.parameters import parse_operator_key
from graphmill.model.plug_ins import PlugInOperator, made, with_parameters
from graphmill.model.registry import REGULARIZERS
from graphmill.vocab import Side
from train.model.optimizer import add_rows

EDGES_AT_A_TIME = 1 << 14  # whose relations are predicted: their vectors fit in memory


class N3(AbstractRegularizer):
    """Sum of the cubes, of moduli for complex numbers (arXiv:1806.07297)."""

    def forward(self, src_pos: Tensor, dst_pos: Tensor, operator: Any) -> Tensor:
        """Compute the penalty of edges of a static relation: [P, D] twice -> []."""
        own = operator.get_operator_params_for_reg()
        return self._cost(
            src_pos, dst_pos, operator, None if own is None else own.pow(3).sum() * len(src_pos)
        )

    def forward_dynamic(self, src_pos: Tensor, dst_pos: Tensor, operator: Any, rel_idxs: Tensor) -> Tensor:
        """Compute the penalty of edges of dynamic relations `rel_idxs` [P]."""
        own = operator.get_operator_params_for_reg(rel_idxs)
        return self._cost(src_pos, dst_pos, operator, None if own is None else own.pow(3).sum())

    def _cost(self, src_pos: Tensor, dst_pos: Tensor, operator: Any, of_operator: Tensor | None) -> Tensor:
        total = src_pos.new_zeros(()) if of_operator is None else of_operator
        for vectors in (src_pos, dst_pos):
            total = total + operator.prepare_embs_for_reg(vectors).pow(3).sum()
        return total * self.weight


def n3_of_operator(operator: str, leaves: Sequence[Tensor], weight_E: Tensor, rel_E: Tensor | None) -> Tensor:
    """Add the gradient of N3 to the operator's parameters `leaves`; return the cost.

    `weight_E` is each edge's coefficient. `rel_E` is each edge's row in dynamic relations' parameters.
    """
    cost = weight_E.new_zeros(())
    groups = OPERATORS[operator].moduli(leaves)
    if not groups:
        return cost
    if rel_E is None:
        weight_R = weight_E.sum()
    else:
        weight_R = add_rows(weight_E.new_zeros(len(leaves[0])), rel_E, weight_E)
    for parts in groups:
        weight = weight_R.view(*weight_R.shape, *[1] * (parts[0].dim() - weight_R.dim()))
        costs, slopes = n3(tuple(part.detach() for part in parts), weight)
        cost += costs.sum()
        for leaf, slope in zip(parts, slopes, strict=True):
            leaf.grad = slope if leaf.grad is None else leaf.grad + slope
    return cost


def is_plug_in(config: Config) -> bool:
    """Tell whether autograd computes the penalties of this configuration."""
    if not config.regularization_coef:
        return False
    names = {relation.operator for relation in config.relations}
    return config.regularizer not in REGULARIZERS.built_in or not names <= OPERATORS.keys()


def regularizer_of(config: Config) -> AbstractRegularizer:
    """Make the regularizer of the configuration."""
    if config.regularizer in REGULARIZERS.built_in:
        return N3(config.regularization_coef)
    regularizer: AbstractRegularizer = made(REGULARIZERS, config.regularizer, config.regularization_coef)
    return regularizer


def penalty(
    regularizer: AbstractRegularizer,
    model: Model,
    relation: int,
    vectors: dict[Side, Tensor],
    rel_E: Tensor | None,
) -> Tensor:
    """Compute the penalty of edges, whose entities have the vectors [E, D] of each side."""
    total = vectors[Side.LHS].new_zeros(())

    def cost_of(src: Tensor, dst: Tensor, operator: Any) -> Any:
        if rel_E is None:
            return regularizer.forward(src, dst, operator)
        return regularizer.forward_dynamic(src, dst, operator, rel_E)

    name = model.config.relations[relation].operator
    for side in Side if model.two_sided else (Side.RHS,):
        keys = model.operator_keys(relation, side)
        own = {parsed.parameter: model.parameters[key] for key in keys if (parsed := parse_operator_key(key))}
        src, dst = vectors[side.other], vectors[side]
        num_relations = None if rel_E is None else max((len(value) for value in own.values()), default=1)
        if isinstance(operator := operator_of(name), PlugInOperator):
            module = operator.module(src.shape[1], num_relations, src.device)
        else:
            module = _built_in(name, src.shape[1], None if rel_E is None else 1)
        cost: Any = with_parameters(module, own, partial(cost_of, src, dst))
        if cost is None or (isinstance(cost, Tensor) and cost.dim()):
            raise ConfigError(f"regularizer {model.config.regularizer!r}: expected one number, found {cost}")
        total = total + cost
    return total


class BuiltIn(torch.nn.Module):
    """A built-in operator as a regularizer sees it: of a static relation, or of dynamic ones."""

    def __init__(self, name: str, dim: int, num_operations: int | None = None) -> None:
        super().__init__()
        self.operator, self.dim, self.num_operations = OPERATORS[name], dim, num_operations
        fresh = self.operator.initial(dim, num_operations, "identity", 0.0, torch.Generator())
        for key, value in fresh.items():
            self.register_parameter(key, torch.nn.Parameter(value))

    def forward(self, embeddings: Tensor, operator_idxs: Tensor | None = None) -> Tensor:
        """Transform vectors [..., D], by their relations [...] if these are dynamic."""
        return self.operator.apply(embeddings, list(self.parameters()), operator_idxs)

    def get_operator_params_for_reg(self, operator_idxs: Tensor | None = None) -> Tensor | None:
        """Return the numbers of all parameters, or of the relations of `operator_idxs`."""
        every = list(self.parameters())
        own = [part.flatten() if operator_idxs is None else part[operator_idxs].flatten(1) for part in every]
        groups = self.operator.moduli(own)
        return torch.cat([_modulus(parts) for parts in groups], -1) if groups else None

    def prepare_embs_for_reg(self, embs: Tensor) -> Tensor:
        """Return absolute values, or moduli of complex numbers."""
        return _modulus(split(embs, self.operator.parts))


_built_in = cache(BuiltIn)


def _modulus(parts: tuple[Tensor, ...]) -> Tensor:
    if len(parts) == 1:
        return parts[0].abs()
    square = reduce(torch.add, [part.square() for part in parts])
    return square.clamp_min(1e-30).sqrt()  # a finite gradient at zero


class Prediction(NamedTuple):
    """The loss of edges, and its gradients with respect to their vectors."""

    loss: Tensor
    entity_ED: Tensor
    answer_ED: Tensor


@torch.no_grad()
def predict_relations(
    operator: str,
    entity_ED: Tensor,
    answer_ED: Tensor,
    leaves: Sequence[Tensor],
    rel_E: Tensor,
    weight_E: Tensor,
) -> Prediction:
    """Compute the loss, and add its gradient to `leaves`, the parameters of the operator of `entity_ED`."""
    product, operator_RD = OPERATORS[operator], torch.cat(list(leaves), dim=-1)
    feature_ED = product.slopes(answer_ED, split(entity_ED, product.parts))
    log_odds_ER = torch.log_softmax(feature_ED @ operator_RD.T, dim=1)
    own_E1 = rel_E.unsqueeze(1)
    loss = -(log_odds_ER.gather(1, own_E1).squeeze(1) * weight_E).sum()
    slope_ER = log_odds_ER.exp().scatter_add(1, own_E1, -torch.ones_like(log_odds_ER[:, :1]))
    slope_ER *= weight_E.unsqueeze(1)
    slope_ED = slope_ER @ operator_RD
    for leaf, part in zip(leaves, (slope_ER.T @ feature_ED).chunk(len(leaves), dim=-1), strict=True):
        leaf.grad = part.contiguous() if leaf.grad is None else leaf.grad + part
    slopes = split(slope_ED, product.parts)
    return Prediction(loss, product.slopes(answer_ED, slopes), product.apply(entity_ED, slopes))
