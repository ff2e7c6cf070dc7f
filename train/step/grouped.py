"""A step on queries: scores of all entities, their softmax, and the gradients in closed form.

    P = softmax(scores)
    gradient of queries: weight P candidates - the candidates that answer
    gradient of candidates: P^T weight queries - the queries that they answer

With half_precision, scores and P are bfloat16, which halves the memory traffic; products add up in float32.
SCORE_BYTES limits the number of queries at a time.

Shapes: Q queries, A answers, N rows of the table of answers, D dimension, U distinct rows.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from graphmill.config import Config
from graphmill.model import operators
from graphmill.vocab import Side
from train.edges.negative_sampling import sides_with_negatives
from train.edges.one_vs_all import QueryBatch
from train.model import losses, optimizer
from train.model.frozen import Frozen
from train.model.model import Model
from train.step.plain import StepFigures, gradient_of, touched_parameters
from train.step.table import Table

SCORE_BYTES = 256 << 20


class Gradients(NamedTuple):
    """The loss of queries, and its gradients with respect to the vectors that are compared."""

    loss: Tensor
    violators: Tensor  # answers that score below another entity
    query_QD: Tensor
    candidate_ND: Tensor


class GroupedStep:
    """Trains on one batch of queries after another.

    Attributes:
        lr_scale: multiplies `lr` and `relation_lr`.
    """

    def __init__(self, config: Config, model: Model, adagrad: optimizer.Adagrad) -> None:
        self.config = config
        self.model = model
        self.adagrad = adagrad
        self.frozen = Frozen.of(config)
        self.lr_scale = 1.0
        # Without an operator for each side the edge is one example, and both its queries regularise it.
        self._share = (2 if model.two_sided else 1) / max(1, len(sides_with_negatives(config)))

    def __call__(self, batch: QueryBatch, tables: Mapping[Side, Table]) -> StepFigures:
        """Score, loss, gradient, update: of all rows on the side of the answers, and of the queries' rows."""
        local, rel_U, rel_Q = touched_parameters(self.model, batch.relation, batch.rel_Q)
        entity_QD = tables[batch.side.other].embeddings_ND[batch.entity_Q].requires_grad_()
        rows_ND = tables[batch.side].embeddings_ND.detach().requires_grad_()
        query_QD = local.query(batch.relation, batch.side, entity_QD, rel_Q)
        candidate_ND = local.candidates(batch.relation, batch.side, rows_ND)
        found = self._compare(query_QD.detach(), candidate_ND.detach(), batch)
        torch.autograd.backward([query_QD, candidate_ND], [found.query_QD, found.candidate_ND])
        reg = self._regularise(batch, local, rel_Q, entity_QD, rows_ND)
        self._update(batch, tables, gradient_of(rows_ND), gradient_of(entity_QD))
        self.adagrad.update(local.parameters, rel_U, self.lr_scale)
        violators = {side: found.violators if side is batch.side else found.violators * 0 for side in Side}
        return StepFigures(found.loss, reg, violators[Side.LHS], violators[Side.RHS])

    def _compare(self, query_QD: Tensor, candidate_ND: Tensor, batch: QueryBatch) -> Gradients:
        """Compute the loss and its gradients, some queries at a time."""
        half = self.config.half_precision
        is_product = self.config.comparator in ("dot", "cos") and not self.config.bias
        compare = self._compare_products if is_product else self._compare_any
        height = max(1, SCORE_BYTES // ((2 if half else 4) * max(1, len(candidate_ND))))
        if len(query_QD) <= height:
            return compare(query_QD, candidate_ND, batch)
        parts = []
        for start in range(0, len(query_QD), height):
            rows = torch.arange(start, min(start + height, len(query_QD)), device=query_QD.device)
            parts.append(compare(query_QD[rows], candidate_ND, batch.select(rows)))
        loss, violators, query, candidate = zip(*parts, strict=True)
        return Gradients(
            torch.stack(loss).sum(),
            torch.stack(violators).sum(),
            torch.cat(query),
            torch.stack(candidate).sum(0),
        )

    def _compare_products(self, query_QD: Tensor, candidate_ND: Tensor, batch: QueryBatch) -> Gradients:
        """Compute scores as a matrix product, and gradients as two more products."""
        dtype = torch.bfloat16 if self.config.half_precision else query_QD.dtype
        query_A = torch.repeat_interleave(batch.count_Q)
        operand_ND = candidate_ND.to(dtype)
        score_QN = query_QD.to(dtype) @ operand_ND.T
        loss, violators, odds_QN = _cross_entropy(score_QN, query_A, batch)
        weight_Q1 = query_QD.new_zeros(len(query_QD)).index_add_(0, query_A, batch.weight_A).unsqueeze(1)
        gradient_QD = (odds_QN @ operand_ND).to(query_QD.dtype) * weight_Q1
        gradient_ND = (odds_QN.T @ (query_QD * weight_Q1).to(dtype)).to(query_QD.dtype)
        weight_A1 = batch.weight_A.unsqueeze(1)
        gradient_QD.index_add_(0, query_A, candidate_ND[batch.answer_A] * weight_A1, alpha=-1)
        gradient_ND.index_add_(0, batch.answer_A, query_QD[query_A] * weight_A1, alpha=-1)
        return Gradients(loss, violators, gradient_QD, gradient_ND)

    def _compare_any(self, query_QD: Tensor, candidate_ND: Tensor, batch: QueryBatch) -> Gradients:
        """Compute scores by any comparator: autograd carries their gradient to the vectors."""
        leaves = query_QD.requires_grad_(), candidate_ND.requires_grad_()
        score_QN = self.model.matrix_scores(*leaves, batch.side, half=self.config.half_precision)
        query_A = torch.repeat_interleave(batch.count_Q)
        loss, violators, gradient_QN = _cross_entropy(score_QN.detach(), query_A, batch)
        weight_Q = gradient_QN.new_zeros(len(query_QD)).index_add_(0, query_A, batch.weight_A)
        gradient_QN *= weight_Q.unsqueeze(1)
        gradient_QN.index_put_((query_A, batch.answer_A), -batch.weight_A, accumulate=True)
        return Gradients(loss, violators, *torch.autograd.grad(score_QN, leaves, gradient_QN))

    def _regularise(
        self, batch: QueryBatch, local: Model, rel_Q: Tensor | None, entity_QD: Tensor, rows_ND: Tensor
    ) -> Tensor:
        """Add N3 of both entities of every edge, and of its operator, to the gradients; return the cost."""
        coefficient = self.config.regularization_coef * self._share
        reg = gradient_of(entity_QD).new_zeros(())
        if not coefficient:
            return reg
        operator = self.config.relations[batch.relation].operator
        count_Q = batch.count_Q.to(reg.dtype)
        answer_U, count_U = torch.unique(batch.answer_A, return_counts=True)
        with torch.no_grad():
            for vectors, count in ((entity_QD, count_Q), (rows_ND[answer_U], count_U.to(reg.dtype))):
                cost, slopes = losses.n3(operators.parts(operator, vectors), coefficient * count.unsqueeze(1))
                reg += cost.sum()
                slope = torch.cat(slopes, dim=-1)
                if vectors is entity_QD:
                    gradient_of(entity_QD).add_(slope)
                else:
                    gradient_of(rows_ND).index_add_(0, answer_U, slope)
            transformed = batch.side.other if local.two_sided else Side.RHS
            leaves = [local.parameters[key] for key in local.operator_keys(batch.relation, transformed)]
            return reg + losses.n3_of_operator(operator, leaves, count_Q * coefficient, rel_Q)

    def _update(
        self, batch: QueryBatch, tables: Mapping[Side, Table], gradient_ND: Tensor, gradient_QD: Tensor
    ) -> None:
        answer_table, query_table = tables[batch.side], tables[batch.side.other]
        settings = self.config.lr * self.lr_scale, self.config.max_norm
        frozen = self.frozen.sides(self.config, batch.relation)
        if answer_table is query_table:
            gradient_ND.index_add_(0, batch.entity_Q, gradient_QD)
        elif batch.side.other not in frozen:
            rows_U, gradient_UD = optimizer.sum_duplicates(batch.entity_Q, gradient_QD)
            optimizer.update_rows(query_table.embeddings_ND, query_table.sums, rows_U, gradient_UD, *settings)
        if batch.side not in frozen:
            optimizer.update_table(answer_table.embeddings_ND, answer_table.sums, gradient_ND, *settings)


def _cross_entropy(score_QN: Tensor, query_A: Tensor, batch: QueryBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Return loss, number of answers that score below another entity, and softmax(scores) [Q, N]."""
    wide = torch.promote_types(score_QN.dtype, torch.float32)
    best_Q = score_QN.amax(1).to(wide)
    own_A = score_QN[query_A, batch.answer_A].to(wide)
    odds_QN = torch.softmax(score_QN, dim=1)
    # The greatest of the odds is 1 / Z, which never underflows.
    total_Q = best_Q - odds_QN.amax(1).to(wide).log()
    loss = ((total_Q[query_A] - own_A) * batch.weight_A).sum()
    return loss, torch.count_nonzero(own_A < best_Q[query_A]), odds_QN
