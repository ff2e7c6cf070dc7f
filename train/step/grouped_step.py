"""A step on questions: the scores of all entities, their softmax, and the gradients in closed form.

    P = softmax(scores)
    pull of questions: weight P candidates - their answers
    pull of candidates: P^T weight questions - those that they answer

With half_precision the scores and P are bfloat16, half the memory to go through: their products add up in
fp32 inside. Scores are made for as many questions at a time as SCORE_BYTES holds.

Shapes: Q questions, A answers, N rows of the table that is asked for, D dimension, U distinct rows.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from graphmill.config import PbgConfig
from graphmill.model import operators
from graphmill.vocab import Side
from train.edges.grouped import Questions, asked_sides
from train.model import losses, optimizer
from train.model.model import Model
from train.step.step import StepFigures, Table, pull_of, touched_parameters

SCORE_BYTES = 256 << 20


class Pull(NamedTuple):
    """Where the loss pulls prepared vectors."""

    loss: Tensor
    violators: Tensor  # answers below some other entity
    query_QD: Tensor
    candidate_ND: Tensor


class GroupedStep:
    """Trains on questions, a batch at a time."""

    def __init__(self, config: PbgConfig, model: Model, adagrad: optimizer.Adagrad) -> None:
        self.config = config
        self.model = model
        self.adagrad = adagrad
        self.lr_scale = 1.0
        # Without an operator for each side the edge is one example, and both its questions regularise it.
        self._share = (2 if model.two_sided else 1) / max(1, len(asked_sides(config)))

    def __call__(self, batch: Questions, tables: Mapping[Side, Table]) -> StepFigures:
        """Move the whole table that is asked for, the rows that ask, and the parameters between them."""
        asked, asking = tables[batch.side], tables[batch.side.other]
        local, rel_U, rel_Q = touched_parameters(self.model, batch.relation, batch.rel_Q)
        entity_QD = asking.embeddings_ND[batch.entity_Q].requires_grad_()
        rows_ND = asked.embeddings_ND.detach().requires_grad_()
        query_QD = local.query(batch.relation, batch.side, entity_QD, rel_Q)
        candidate_ND = local.candidates(batch.relation, batch.side, rows_ND)
        pull = self._pull(query_QD.detach(), candidate_ND.detach(), batch)
        torch.autograd.backward([query_QD, candidate_ND], [pull.query_QD, pull.candidate_ND])
        reg = self._regularise(batch, local, rel_Q, entity_QD, rows_ND)
        self._update(batch, asked, asking, pull_of(rows_ND), pull_of(entity_QD))
        for key, leaf in local.parameters.items():
            if leaf.grad is not None:
                self.adagrad.update(key, leaf.grad, rel_U, self.lr_scale)
        violators = {side: pull.violators if side is batch.side else pull.violators * 0 for side in Side}
        return StepFigures(pull.loss, reg, violators[Side.LHS], violators[Side.RHS])

    def _pull(self, query_QD: Tensor, candidate_ND: Tensor, batch: Questions) -> Pull:
        """The loss and its gradient, some questions at a time."""
        half = self.config.half_precision
        is_product = self.config.comparator in ("dot", "cos") and not self.config.bias
        pull = self._pull_product if is_product else self._pull_any
        height = max(1, SCORE_BYTES // ((2 if half else 4) * max(1, len(candidate_ND))))
        if len(query_QD) <= height:
            return pull(query_QD, candidate_ND, batch)
        parts = []
        for start in range(0, len(query_QD), height):
            rows = torch.arange(start, min(start + height, len(query_QD)), device=query_QD.device)
            parts.append(pull(query_QD[rows], candidate_ND, batch.select(rows)))
        loss, violators, query, candidate = zip(*parts, strict=True)
        return Pull(
            torch.stack(loss).sum(),
            torch.stack(violators).sum(),
            torch.cat(query),
            torch.stack(candidate).sum(0),
        )

    def _pull_product(self, query_QD: Tensor, candidate_ND: Tensor, batch: Questions) -> Pull:
        """Scores that are a matrix product."""
        kind = torch.bfloat16 if self.config.half_precision else query_QD.dtype
        question_A = torch.repeat_interleave(batch.count_Q)
        small_ND = candidate_ND.to(kind)
        score_QN = query_QD.to(kind) @ small_ND.T
        loss, violators, odds_QN = _cross_entropy(score_QN, question_A, batch)
        weight_Q1 = query_QD.new_zeros(len(query_QD)).index_add_(0, question_A, batch.weight_A).unsqueeze(1)
        pull_QD = (odds_QN @ small_ND).to(query_QD.dtype) * weight_Q1
        pull_ND = (odds_QN.T @ (query_QD * weight_Q1).to(kind)).to(query_QD.dtype)
        weight_A1 = batch.weight_A.unsqueeze(1)
        pull_QD.index_add_(0, question_A, candidate_ND[batch.answer_A] * weight_A1, alpha=-1)
        pull_ND.index_add_(0, batch.answer_A, query_QD[question_A] * weight_A1, alpha=-1)
        return Pull(loss, violators, pull_QD, pull_ND)

    def _pull_any(self, query_QD: Tensor, candidate_ND: Tensor, batch: Questions) -> Pull:
        """Scores of any comparator: autograd carries the gradient from them to the vectors."""
        leaves = query_QD.requires_grad_(), candidate_ND.requires_grad_()
        score_QN = self.model.matrix_scores(*leaves, half=self.config.half_precision)
        question_A = torch.repeat_interleave(batch.count_Q)
        loss, violators, pull_QN = _cross_entropy(score_QN.detach(), question_A, batch)
        pull_QN *= pull_QN.new_zeros(len(query_QD)).index_add_(0, question_A, batch.weight_A).unsqueeze(1)
        pull_QN.index_put_((question_A, batch.answer_A), -batch.weight_A, accumulate=True)
        return Pull(loss, violators, *torch.autograd.grad(score_QN, leaves, pull_QN))

    def _regularise(
        self, batch: Questions, local: Model, rel_Q: Tensor | None, entity_QD: Tensor, rows_ND: Tensor
    ) -> Tensor:
        """Add N3 to the gradients: of both entities of every edge, and of the operator between them."""
        coefficient = self.config.regularization_coef * self._share
        reg = pull_of(entity_QD).new_zeros(())
        if not coefficient:
            return reg
        operator = self.config.relations[batch.relation].operator
        count_Q = batch.count_Q.to(reg.dtype)
        answer_U, count_U = torch.unique(batch.answer_A, return_counts=True)
        with torch.no_grad():
            for vectors, count in ((entity_QD, count_Q), (rows_ND[answer_U], count_U.to(reg.dtype))):
                parts = operators.parts(operator, vectors)
                cost, slopes = losses.n3(parts, coefficient * count.unsqueeze(1))
                reg += cost
                slope = torch.cat(slopes, dim=-1)
                if vectors is entity_QD:
                    pull_of(entity_QD).add_(slope)
                else:
                    pull_of(rows_ND).index_add_(0, answer_U, slope)
            transformed = batch.side.other if local.two_sided else Side.RHS
            leaves = [local.parameters[key] for key in local.operator_keys(batch.relation, transformed)]
            return reg + losses.n3_of_operator(operator, leaves, count_Q * coefficient, rel_Q)

    def _update(
        self, batch: Questions, asked: Table, asking: Table, pull_ND: Tensor, pull_QD: Tensor
    ) -> None:
        settings = self.config.lr * self.lr_scale, self.config.max_norm
        if asked is asking:
            pull_ND.index_add_(0, batch.entity_Q, pull_QD)
        else:
            rows_U, pull_UD = optimizer.sum_duplicates(batch.entity_Q, pull_QD)
            optimizer.update_rows(asking.embeddings_ND, asking.sums, rows_U, pull_UD, *settings)
        optimizer.update_table(asked.embeddings_ND, asked.sums, pull_ND, *settings)


def _cross_entropy(score_QN: Tensor, question_A: Tensor, batch: Questions) -> tuple[Tensor, Tensor, Tensor]:
    """The loss; how many answers score below another entity; softmax(scores) [Q, N]."""
    wide = torch.promote_types(score_QN.dtype, torch.float32)
    best_Q = score_QN.amax(1).to(wide)
    own_A = score_QN[question_A, batch.answer_A].to(wide)
    odds_QN = torch.softmax(score_QN, dim=1)
    # the greatest of the odds is 1 / Z, which never underflows
    total_Q = best_Q - odds_QN.amax(1).to(wide).log()
    loss = ((total_Q[question_A] - own_A) * batch.weight_A).sum()
    return loss, torch.count_nonzero(own_A < best_Q[question_A]), odds_QN
