"""A step on queries: scores of all entities, their softmax, and the gradients in closed form.

    P = softmax(scores)
    gradient of queries: weight P candidates - the candidates that answer
    gradient of candidates: P^T weight queries - the queries that they answer

With candidates, the softmax is over them and the answers of the query, which are own rows after the
candidates: K = C + A rows. A step then touches these rows and those of the queries.

With half_precision, scores and P are bfloat16; products add up in float32. No operation of a move waits for
the host, and all shapes follow from those of the batch: a GPU can replay a move (train/gpu/replays.py).

Shapes: Q queries, A answers, N rows of the table of answers or K rows of a sample, C candidates, D dimension.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from threading import Lock
from typing import NamedTuple

import torch
from torch import Tensor

from graphmill.ask.evaluate.queries import chunks
from graphmill.ask.model import Model
from graphmill.config import Config
from graphmill.model import comparators, losses, operators
from graphmill.vocab import Side
from train.edges.candidates import CandidateSampler
from train.edges.negative_sampling import sides_with_negatives
from train.edges.one_vs_all import QueryBatch
from train.model import optimizer, regularizers
from train.model.optimizer import Rate, add_rows
from train.step.plain import gradient_of, touched_parameters
from train.step.step import SideTables, Step, StepFigures, Table

_NEVER = -1e30  # a score that leaves nothing of its candidate; finite in bfloat16, so that it adds up
SCORE_BYTES = {"cpu": 256 << 20, "cuda": 2 << 30}  # of the queries at a time, by the type of the device


class Gradients(NamedTuple):
    """The loss of queries, and its gradients with respect to the vectors that are compared."""

    loss: Tensor
    violators: Tensor  # answers that score below another entity
    query_QD: Tensor
    candidate_ND: Tensor


Moved = tuple[StepFigures, list[str]]  # with the keys of the parameters that have moved
Move = Callable[[QueryBatch, SideTables, Rate], Moved]
Ends = Sequence[Callable[[], Moved]]  # parts of the end of a step, which moves what it touches
Launch = Callable[[Move, QueryBatch, SideTables, float], Moved]


class QueryStep(Step[QueryBatch]):
    """Trains on one batch of queries after another."""

    def __init__(
        self, config: Config, model: Model, adagrad: optimizer.Adagrad, launch: Launch | None = None
    ) -> None:
        """`launch` replays what a GPU has captured of `move`, if there is such a thing."""
        super().__init__(config, model, adagrad)
        self.launch = launch
        self.candidates = CandidateSampler(config)
        self._turns = Lock()
        # Without an operator for each side the edge is one example, and both its queries regularise it.
        self._share = (2 if model.two_sided else 1) / max(1, len(sides_with_negatives(config)))

    def begin_bucket(self) -> None:
        """Forget how often candidates of earlier buckets were mistaken for an answer."""
        self.candidates = CandidateSampler(self.config)

    def __call__(self, batch: QueryBatch, tables: SideTables, generator: torch.Generator) -> StepFigures:
        """Draw candidates, and move rows and parameters; threads may step side by side."""
        batch = self.draw(batch, tables, generator)
        move = partial(self.launch, self.move) if self.launch else self.move
        with self._turns if self.moves_all_rows(batch, tables) else nullcontext():
            return self.learn(batch, [move(batch, tables, self.lr_scale)])

    def draw(self, batch: QueryBatch, tables: SideTables, generator: torch.Generator) -> QueryBatch:
        """Draw candidates."""
        return self.candidates.draw(batch, len(tables[batch.side]), generator, self.share_of_negatives)

    def moves_all_rows(self, batch: QueryBatch, tables: SideTables) -> bool:
        """Tell whether a batch moves all rows of a table, in PyTorch."""
        return batch.candidate_C is None

    def learn(self, batch: QueryBatch, moved: Sequence[Moved]) -> StepFigures:
        """Count a step by its parts, and learn from it how to draw candidates."""
        figures, keys = zip(*moved, strict=True)
        self.adagrad.count(chain(*keys))
        self.candidates.learn(batch)
        return StepFigures(*(torch.stack(column).sum() for column in zip(*figures, strict=True)))

    def move(self, batch: QueryBatch, tables: SideTables, lr_scale: Rate) -> Moved:
        """Score, loss, gradient, update: the part of a step that a captured graph repeats."""
        return self.begin(batch, tables, lr_scale)[0]()

    def begin(self, batch: QueryBatch, tables: SideTables, lr_scale: Rate, num_parts: int = 1) -> Ends:
        """Score, loss, gradient; what it returns updates, in `num_parts` or, here, in one."""
        local, _, _ = touched_parameters(self.model, batch.relation, None)
        entity_QD = tables[batch.side.other].embeddings_ND.index_select(0, batch.entity_Q)
        entity_QD.requires_grad_()
        rows_ND, rows_K = tables[batch.side].embeddings_ND.data, None  # which other threads may move
        own = batch  # its answers are numbered by rows_ND
        if batch.candidate_C is not None:
            rows_K = torch.cat([batch.candidate_C, batch.answer_A])
            rows_ND = rows_ND.index_select(0, rows_K)
            place_A = torch.arange(len(batch.candidate_C), len(rows_K), device=rows_K.device)
            own = replace(batch, answer_A=place_A)
        rows_ND.requires_grad_()
        query_QD = local.query(batch.relation, batch.side, entity_QD, batch.rel_Q)
        candidate_ND = local.candidates(batch.relation, batch.side, rows_ND)
        gradients = self._compare(query_QD.detach(), candidate_ND.detach(), batch)
        ends = (query_QD, entity_QD, gradients.query_QD), (candidate_ND, rows_ND, gradients.candidate_ND)
        for made, leaf, gradient in ends:
            if made is leaf:  # autograd would copy the gradient, and import modules for .4 s
                leaf.grad = gradient
            else:
                made.backward(gradient)  # type: ignore[no-untyped-call]
        loss = sum(self._predict_relations(own, local, entity_QD, rows_ND), start=gradients.loss)
        reg = self._regularise(own, local, entity_QD, rows_ND)
        none = torch.zeros_like(gradients.violators)
        lhs, rhs = (gradients.violators if side is batch.side else none for side in Side)

        def end() -> Moved:
            self._update(batch, tables, rows_K, gradient_of(rows_ND), gradient_of(entity_QD), lr_scale)
            return StepFigures(loss, reg, lhs, rhs), self.adagrad.move(local.parameters, None, lr_scale)

        return [end]

    def _compare(self, query_QD: Tensor, candidate_ND: Tensor, batch: QueryBatch) -> Gradients:
        """Compute the loss and its gradients, some queries at a time."""
        compare, num_scores = self._compare_any, len(candidate_ND)
        if batch.candidate_C is not None:
            compare, num_scores = self._compare_sample, len(batch.candidate_C)
        elif comparators.is_dot(self.config.comparator, self.config.bias):
            compare = self._compare_products
        limit = SCORE_BYTES[query_QD.device.type]
        height = max(1, limit // (self._operands(query_QD).itemsize * max(1, num_scores)))
        if len(query_QD) <= height:
            return compare(query_QD, candidate_ND, batch)
        parts = chunks(slice(0, len(query_QD)), height)
        compared = [compare(query_QD[part], candidate_ND, batch.part(part)) for part in parts]
        loss, violators, query, candidate = zip(*compared, strict=True)
        return Gradients(
            torch.stack(loss).sum(),
            torch.stack(violators).sum(),
            torch.cat(query),
            torch.stack(candidate).sum(0),
        )

    def _operands(self, vectors: Tensor) -> torch.dtype:
        return torch.bfloat16 if self.model.takes_half(vectors.device) else vectors.dtype

    def _compare_products(self, query_QD: Tensor, candidate_ND: Tensor, batch: QueryBatch) -> Gradients:
        """Compute scores as a matrix product, and gradients as two more products."""
        dtype = self._operands(query_QD)
        left_QD, right_ND = query_QD.to(dtype), candidate_ND.to(dtype)
        loss, violators, odds_QN = _cross_entropy(left_QD @ right_ND.T, batch)
        weight_Q1, minus_A1 = batch.weight_Q.unsqueeze(1), -batch.weight_A.unsqueeze(1)
        gradient_QD = (odds_QN @ right_ND).to(query_QD.dtype) * weight_Q1
        gradient_ND = (odds_QN.T @ (query_QD * weight_Q1).to(dtype)).to(query_QD.dtype)
        # The answers' part is not rounded: it is in every step of a query.
        add_rows(gradient_QD, batch.query_A, candidate_ND.index_select(0, batch.answer_A) * minus_A1)
        add_rows(gradient_ND, batch.answer_A, query_QD.index_select(0, batch.query_A) * minus_A1)
        return Gradients(loss, violators, gradient_QD, gradient_ND)

    def _compare_sample(self, query_QD: Tensor, candidate_ND: Tensor, batch: QueryBatch) -> Gradients:
        """Compare queries with the drawn candidates by matrix products, and with their own answers."""
        assert batch.candidate_C is not None
        assert batch.log_weight_C is not None
        assert batch.mass_C is not None
        num = len(batch.candidate_C)
        candidate_CD, answer_AD = candidate_ND[:num], candidate_ND[num:]
        dtype = self._operands(query_QD)
        left_QD, right_CD = query_QD.to(dtype), candidate_CD.to(dtype)
        log_weight_C = batch.own.weighted(batch.log_weight_C, batch.candidate_C)
        score_QC = torch.addmm(log_weight_C.to(dtype), left_QD, right_CD.T)
        _mask_candidates(score_QC, batch.candidate_C, batch.query_A, batch.answer_A, batch.weight_A != 0)
        if batch.others is not None:
            _mask_candidates(score_QC, batch.candidate_C, *batch.others)
        best_Q, total_Q, odds_QC = _softmax(score_QC)
        asking_AD = query_QD.index_select(0, batch.query_A)
        own_A = (asking_AD * answer_AD).sum(1)
        best_Q, total_Q = best_Q.to(own_A), total_Q.to(own_A)
        weighted_A = batch.own.weighted(own_A, batch.answer_A)
        all_Q, odds_A = _with_answers(total_Q, weighted_A, batch)
        loss = ((all_Q[batch.query_A] - own_A) * batch.weight_A).sum()
        is_answer_A = batch.weight_A != 0
        best_Q = best_Q.scatter_reduce(0, batch.query_A, weighted_A.where(is_answer_A, -torch.inf), "amax")
        is_beaten_A = (weighted_A < best_Q[batch.query_A]) & is_answer_A
        weight_Q = batch.weight_Q * (total_Q - all_Q).exp()
        batch.mass_C.add_((weight_Q.to(dtype) @ odds_QC).to(batch.mass_C) * (-batch.log_weight_C).exp())
        gradient_QD = (odds_QC @ right_CD).to(query_QD.dtype) * weight_Q.unsqueeze(1)
        gradient_CD = (odds_QC.T @ (query_QD * weight_Q.unsqueeze(1)).to(dtype)).to(query_QD.dtype)
        slope_A1 = (odds_A * batch.weight_Q[batch.query_A] - batch.weight_A).unsqueeze(1)
        add_rows(gradient_QD, batch.query_A, answer_AD * slope_A1)
        gradient_KD = torch.cat([gradient_CD, asking_AD * slope_A1])
        return Gradients(loss, torch.count_nonzero(is_beaten_A), gradient_QD, gradient_KD)

    def _compare_any(self, query_QD: Tensor, candidate_ND: Tensor, batch: QueryBatch) -> Gradients:
        """Compute scores by any comparator: autograd carries their gradient to the vectors."""
        leaves = query_QD.requires_grad_(), candidate_ND.requires_grad_()
        half = self.model.takes_half(query_QD.device)
        score_QN = self.model.matrix_scores(*leaves, batch.side, half=half)
        seen_QN = score_QN.detach()
        if batch.others is not None or batch.own.weight != 1:  # autograd needs the scores as they are
            seen_QN = seen_QN.clone()
        loss, violators, odds_QN = _cross_entropy(seen_QN, batch)
        gradient_QN = odds_QN * batch.weight_Q.unsqueeze(1)
        place_A = batch.query_A * score_QN.shape[1] + batch.answer_A
        add_rows(gradient_QN.view(-1), place_A, -batch.weight_A.to(gradient_QN.dtype))
        return Gradients(loss, violators, *torch.autograd.grad(score_QN, leaves, gradient_QN))

    def _predict_relations(
        self, batch: QueryBatch, local: Model, entity_QD: Tensor, rows_ND: Tensor
    ) -> list[Tensor]:
        """Add the gradient of the loss of the edges' relations; return the loss of each part of the edges."""
        if not self.relation_weight or batch.rel_Q is None:
            return []
        operator = self.config.relations[batch.relation].operator
        leaves = [local.parameters[key] for key in local.operator_keys(batch.relation, batch.side.other)]
        loss: list[Tensor] = []
        with torch.no_grad():
            for part in chunks(slice(0, len(batch.answer_A)), regularizers.EDGES_AT_A_TIME):
                query_A, answer_A = batch.query_A[part], batch.answer_A[part]
                weight_A = batch.weight_A[part] * self.relation_weight
                ends, rel_A = (entity_QD[query_A], rows_ND[answer_A]), batch.rel_Q[query_A]
                predicted = regularizers.predict_relations(operator, *ends, leaves, rel_A, weight_A)
                loss.append(predicted.loss)
                add_rows(gradient_of(entity_QD), query_A, predicted.entity_ED)
                add_rows(gradient_of(rows_ND), answer_A, predicted.answer_ED)
        return loss

    def _regularise(self, batch: QueryBatch, local: Model, entity_QD: Tensor, rows_ND: Tensor) -> Tensor:
        """Add N3 of both entities of every edge, and of its operator, to the gradients; return the cost."""
        coefficient = self.config.regularization_coef * self._share
        if not coefficient:
            return entity_QD.new_zeros(())
        operator = self.config.relations[batch.relation].operator
        with torch.no_grad():
            is_answer_A = torch.arange(len(batch.answer_A), device=rows_ND.device) < batch.count_Q.sum()
            vectors_KD = torch.cat([entity_QD, rows_ND.index_select(0, batch.answer_A)])
            weight_K1 = coefficient * torch.cat([batch.count_Q, is_answer_A]).unsqueeze(1)
            weight = losses.n3_weights(weight_K1, vectors_KD, has_popularity=self.config.train.popularity)
            cost_K, slopes = losses.n3(operators.parts(operator, vectors_KD), weight)
            slope_QD, slope_AD = torch.split(torch.cat(slopes, dim=-1), [len(entity_QD), len(batch.answer_A)])
            gradient_of(entity_QD).add_(slope_QD)
            add_rows(gradient_of(rows_ND), batch.answer_A, slope_AD)
            transformed = batch.side.other if local.two_sided else Side.RHS
            leaves = [local.parameters[key] for key in local.operator_keys(batch.relation, transformed)]
            return cost_K.sum() + regularizers.n3_of_operator(
                operator, leaves, batch.count_Q * coefficient, batch.rel_Q
            )

    def _update(
        self,
        batch: QueryBatch,
        tables: SideTables,
        rows_K: Tensor | None,
        gradient_ND: Tensor,
        gradient_QD: Tensor,
        lr_scale: Rate,
    ) -> None:
        answer_table, query_table = tables[batch.side], tables[batch.side.other]
        settings = self.config.lr * lr_scale, self.config.max_norm
        frozen = self.frozen.sides(self.config, batch.relation)
        if answer_table is query_table:
            if rows_K is None:
                add_rows(gradient_ND, batch.entity_Q, gradient_QD)
            else:
                rows_K = torch.cat([rows_K, batch.entity_Q])
                gradient_ND = torch.cat([gradient_ND, gradient_QD])
        elif batch.side.other not in frozen:
            self._update_rows(query_table, batch.entity_Q, gradient_QD, *settings)
        if batch.side in frozen:
            return
        if rows_K is None:
            optimizer.update_table(answer_table.embeddings_ND, answer_table.sums, gradient_ND, *settings)
        else:
            self._update_rows(answer_table, rows_K, gradient_ND, *settings)

    def _update_rows(
        self, table: Table, rows_K: Tensor, gradient_KD: Tensor, lr: Rate, max_norm: float | None
    ) -> None:
        """Take one Adagrad step on rows, which may repeat; their gradients add up."""
        sum_KD = optimizer.sum_at_duplicates(rows_K, gradient_KD)
        optimizer.update_rows(table.embeddings_ND, table.sums, rows_K, sum_KD, lr, max_norm)


def _softmax(score_QN: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the best score of each query, the log of the sum of exp(scores), and softmax(scores)."""
    wide = torch.promote_types(score_QN.dtype, torch.float32)
    best_Q = score_QN.amax(1).to(wide)
    odds_QN = torch.softmax(score_QN, dim=1)
    # The greatest of the odds is 1 / Z, which never underflows.
    return best_Q, best_Q - odds_QN.amax(1).to(wide).log(), odds_QN


def _cross_entropy(score_QN: Tensor, batch: QueryBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss, the number of answers below another entity, and softmax [Q, N], maybe in `scores`."""
    own_A = weighted_A = score_QN[batch.query_A, batch.answer_A]
    if batch.own.weight != 1:
        score_QN[:, batch.own.start : batch.own.stop] += math.log(batch.own.weight)
        weighted_A = score_QN[batch.query_A, batch.answer_A]
    if batch.others is not None:
        query_O, answer_O, mask_O = batch.others
        add_rows(score_QN.view(-1), query_O * score_QN.shape[1] + answer_O, mask_O.to(score_QN) * _NEVER)
    best_Q, total_Q, odds_QN = _softmax(score_QN)
    own_A = own_A.to(best_Q)
    loss = ((total_Q[batch.query_A] - own_A) * batch.weight_A).sum()
    is_beaten_A = (weighted_A < best_Q[batch.query_A]) & (batch.weight_A != 0)
    return loss, torch.count_nonzero(is_beaten_A), odds_QN


def _mask_candidates(
    score_QC: Tensor, candidate_C: Tensor, query_A: Tensor, answer_A: Tensor, mask_A: Tensor
) -> None:
    """Leave answers of a query out of its candidates, in place; those without a mask stay."""
    num = len(candidate_C)
    first_A = torch.searchsorted(candidate_C, answer_A)
    for place_A in (first_A, first_A + 1):  # a candidate comes twice at most
        place_A.clamp_max_(num - 1)
        is_drawn_A = (candidate_C[place_A] == answer_A) * mask_A
        add_rows(score_QC.view(-1), query_A * num + place_A, is_drawn_A.to(score_QC) * _NEVER)


def _with_answers(total_Q: Tensor, own_A: Tensor, batch: QueryBatch) -> tuple[Tensor, Tensor]:
    """Add the answers of each query to its sum, once; return the logarithm of the sum, and the answers' odds.

    The odds of an answer are split among its repetitions.
    """
    is_answer_A = batch.weight_A != 0
    width = batch.answer_A.max() + 1
    key_A = torch.where(is_answer_A, batch.query_A * width + batch.answer_A, -1)
    sorted_A = torch.sort(key_A).values
    times_A = torch.searchsorted(sorted_A, key_A, right=True) - torch.searchsorted(sorted_A, key_A)
    share_A = torch.where(is_answer_A, own_A - times_A.to(own_A).log(), -torch.inf)
    most_Q = total_Q.scatter_reduce(0, batch.query_A, share_A, "amax")
    sum_Q = (total_Q - most_Q).exp()
    add_rows(sum_Q, batch.query_A, (share_A - most_Q[batch.query_A]).exp())
    all_Q = most_Q + sum_Q.log()
    return all_Q, (share_A - all_Q[batch.query_A]).exp()
