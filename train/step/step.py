"""A gradient step: edges, the rows that they touch, the parameters of their relations.

Rows are gathered, scored, and pulled: the losses' gradients are known in closed form, autograd carries
them through comparator and operator back to the rows, duplicates are summed, Adagrad moves the rows.

Shapes: B edges of a batch, C chunks, P positives a chunk, K candidates of a chunk, M negatives of a
positive, D dimension, N rows of a table, U distinct rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from graphmill.config import Config
from graphmill.errors import TrainingError
from graphmill.model import operators
from graphmill.vocab import Side
from train.edges.negatives import Batch, Block, Sampling
from train.model import losses, optimizer
from train.model.model import Model


@dataclass(eq=False)
class Table:
    """The embeddings of one partition and the state of their optimizer."""

    embeddings_ND: Tensor
    sums: Tensor  # of squared gradients: [N] with row-wise Adagrad, [N, D] with element-wise

    def __len__(self) -> int:
        return len(self.embeddings_ND)


class Scores(NamedTuple):
    """Scores of one side's corruption."""

    pos_CP: Tensor
    neg_CPM: Tensor


class StepFigures(NamedTuple):
    """Sums over a batch's edges."""

    loss: Tensor
    reg: Tensor
    violators_lhs: Tensor  # negatives that score above their positive
    violators_rhs: Tensor


def gather(batch: Batch, block: Block, tables: Mapping[Side, Table]) -> dict[Side, Tensor]:
    """The candidates' embeddings of each side, [C, K, D]."""
    gathered = {}
    for side, table in tables.items():
        rows_CK, bags = block.rows[side], batch.bags.get(side)
        if bags is None:
            vectors = table.embeddings_ND.index_select(0, rows_CK.flatten())
        else:
            vectors = bags.means(table.embeddings_ND, rows_CK.flatten())
        gathered[side] = vectors.view(*rows_CK.shape, -1)
    return gathered


def scores(model: Model, block: Block, embeddings: Mapping[Side, Tensor]) -> dict[Side, Scores]:
    """Score the block's edges and their negatives on each side; own positives are masked."""
    chunk = block.num_positives
    candidates = {side: model.candidates(block.relation, side, embeddings[side]) for side in Side}
    scored = {}
    for side in Side:
        if model.two_sided:
            others_CPD = embeddings[side.other][:, :chunk]
            query_CPD = model.query(block.relation, side, others_CPD, block.rel_CP)
        else:  # the operator has been applied to these already
            query_CPD = candidates[side.other][:, :chunk]
        pos_CP = model.edge_scores(query_CPD, candidates[side][:, :chunk])
        neg_CPM = model.matrix_scores(
            query_CPD, candidates[side][:, block.first_negative[side] :], half=model.config.half_precision
        )
        neg_CPM.detach().masked_fill_(block.own(side), losses.MASKED)
        scored[side] = Scores(pos_CP, neg_CPM)
    return scored


class Step:
    """Trains on batches, one at a time, by torch alone: all of the configuration, on any device."""

    def __init__(self, config: Config, model: Model, adagrad: optimizer.Adagrad) -> None:
        self.config = config
        self.model = model
        self.adagrad = adagrad
        self.sampling = Sampling.of_training(config)
        self.lr_scale = 1.0

    def __call__(self, batch: Batch, tables: Mapping[Side, Table], generator: torch.Generator) -> StepFigures:
        """Move the rows and parameters that the batch touches."""
        all_negs = self.config.relations[batch.relation].all_negs
        blocks = self.sampling.blocks(batch, batch.num_entities(tables), all_negs, generator)
        steps = zip(*(block.steps() for block in blocks), strict=True)
        figures = [self._step(batch, step, tables) for step in steps]
        return StepFigures(*(torch.stack(column).sum() for column in zip(*figures, strict=True)))

    def _step(self, batch: Batch, blocks: Sequence[Block], tables: Mapping[Side, Table]) -> StepFigures:
        rel = [block.rel_CP.flatten() for block in blocks if block.rel_CP is not None]
        local, rel_U, position_B = touched_parameters(
            self.model, batch.relation, torch.cat(rel) if rel else None
        )
        if position_B is not None:
            positions = torch.split(position_B, [block.weight_CP.numel() for block in blocks])
            blocks = [
                replace(block, rel_CP=position.view_as(block.weight_CP))
                for block, position in zip(blocks, positions, strict=True)
            ]
        pulls: dict[Side, list[tuple[Tensor, Tensor]]] = {side: [] for side in Side}
        figures = []
        for block in blocks:
            gathered = gather(batch, block, tables)
            embeddings = {side: vectors.requires_grad_() for side, vectors in gathered.items()}
            figures.append(self._backward(local, block, embeddings))
            for side in Side:
                pull = block.rows[side].flatten(), pull_of(embeddings[side]).flatten(0, 1)
                pulls[side].append(batch.bags[side].spread(*pull) if side in batch.bags else pull)
        loss, reg, lhs, rhs = (torch.stack(column).sum() for column in zip(*figures, strict=True))
        weight_B = torch.cat([block.weight_CP.flatten() for block in blocks])
        reg = reg + self._regularise_parameters(local, batch.relation, weight_B, position_B)
        self._update(tables, pulls, local, rel_U)
        return StepFigures(loss, reg, lhs, rhs)

    def _backward(self, local: Model, block: Block, embeddings: dict[Side, Tensor]) -> StepFigures:
        """Fill in the gradients of the embeddings and of the local parameters."""
        scored = scores(local, block, embeddings)
        violators, pulled = {}, {}
        for side, (pos_CP, neg_CPM) in scored.items():
            pos_CP, neg_CPM = pos_CP.detach(), neg_CPM.detach()
            violators[side] = torch.count_nonzero(neg_CPM > pos_CP.unsqueeze(-1))
            pulled[side] = losses.loss_gradient(
                self.config.loss_fn, self.config.margin, pos_CP, neg_CPM, block.weight_CP
            )
        torch.autograd.backward(
            [each for side in Side for each in scored[side]],
            [each for side in Side for each in (pulled[side].pos_CP, pulled[side].neg_CPM)],
        )
        loss = pulled[Side.LHS].loss + pulled[Side.RHS].loss
        reg = torch.zeros_like(loss)
        if self.config.regularization_coef:
            # with an operator for each side an edge is scored in two ways, each an example of its own
            times = 2 if self.model.two_sided else 1
            operator = self.config.relations[block.relation].operator
            for embedding_CKD in embeddings.values():
                positives_CPD = embedding_CKD.detach()[:, : block.num_positives]
                parts = operators.parts(operator, positives_CPD)
                cost, slopes = losses.n3(parts, self.config.regularization_coef * times)
                pull_of(embedding_CKD)[:, : block.num_positives] += torch.cat(slopes, dim=-1)
                reg += cost
        return StepFigures(loss, reg, violators[Side.LHS], violators[Side.RHS])

    def _regularise_parameters(
        self, local: Model, relation: int, weight_B: Tensor, rel_B: Tensor | None
    ) -> Tensor:
        """Add to the gradients of the operators' parameters: each edge's relation counts once."""
        reg = weight_B.new_zeros(())
        if not self.config.regularization_coef:
            return reg
        operator = self.config.relations[relation].operator
        for side in Side:
            leaves = [local.parameters[key] for key in local.operator_keys(relation, side)]
            coefficient_B = torch.full_like(weight_B, self.config.regularization_coef)
            reg += losses.n3_of_operator(operator, leaves, coefficient_B, rel_B)
        return reg

    def _update(
        self,
        tables: Mapping[Side, Table],
        pulls: Mapping[Side, list[tuple[Tensor, Tensor]]],
        local: Model,
        rel_U: Tensor | None,
    ) -> None:
        same = tables[Side.LHS] is tables[Side.RHS]
        for sides in [tuple(Side)] if same else [(side,) for side in Side]:
            touched = [each for side in sides for each in pulls[side]]
            rows_U, gradient_UD = optimizer.sum_duplicates(
                torch.cat([rows_K for rows_K, _ in touched]), torch.cat([pull_KD for _, pull_KD in touched])
            )
            table = tables[sides[0]]
            lr = self.config.lr * self.lr_scale
            optimizer.update_rows(
                table.embeddings_ND, table.sums, rows_U, gradient_UD, lr, self.config.max_norm
            )
        for key, leaf in local.parameters.items():
            if leaf.grad is not None:
                self.adagrad.update(key, leaf.grad, rel_U, self.lr_scale)


def touched_parameters(
    model: Model, relation: int, rel: Tensor | None
) -> tuple[Model, Tensor | None, Tensor | None]:
    """The model with just the parameters that edges touch, as leaves of the gradient.

    With dynamic relations these are the rows `rel_U`, and the edges' relations become positions in it:
    (model, rel_U, positions); else (model, None, None).
    """
    keys = model.keys_of(relation)
    if rel is None:
        leaves = {key: model.parameters[key].detach().requires_grad_() for key in keys}
        return model.with_parameters(leaves), None, None
    rel_U, position = torch.unique(rel, return_inverse=True)
    leaves = {key: model.parameters[key][rel_U].requires_grad_() for key in keys}
    return model.with_parameters(leaves), rel_U, position


def pull_of(leaf: Tensor) -> Tensor:
    """The gradient that has arrived at a leaf."""
    if leaf.grad is None:
        raise TrainingError("no gradient has arrived at the embeddings; this is a defect of GraphMill")
    return leaf.grad
