"""One gradient step: a batch of edges, the rows that it touches, the parameters of its relations.

Rows are gathered, scored, and pulled: the losses' gradients are known in closed form, autograd carries
them through comparator and operator back to the rows, duplicates are summed, Adagrad moves the rows.

Shapes: B edges of a batch, C chunks, P positives a chunk, K candidates of a chunk, M negatives of a
positive, D dimension, N rows of a table, U distinct rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from graphmill.config import PbgConfig
from graphmill.errors import TrainingError
from graphmill.vocab import Side
from train import losses, optimizer
from train.model import Model
from train.negatives import Batch, Block, Sampling


@dataclass(eq=False)
class Table:
    """The embeddings of one partition and the state of their optimizer."""

    embeddings_ND: Tensor
    sum_N: Tensor

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


def gather(block: Block, tables: Mapping[Side, Table]) -> dict[Side, Tensor]:
    """The candidates' embeddings of each side, [C, K, D]."""
    return {
        side: table.embeddings_ND.index_select(0, block.rows[side].flatten()).view(
            *block.rows[side].shape, -1
        )
        for side, table in tables.items()
    }


def scores(model: Model, block: Block, embeddings: Mapping[Side, Tensor]) -> dict[Side, Scores]:
    """Score the block's edges and their negatives on each side; own positives are masked."""
    chunk = block.num_positives
    candidates = {side: model.candidates(block.relation, side, embeddings[side]) for side in Side}
    scored = {}
    for side in Side:
        if model.config.dynamic_relations:
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
    """Trains on batches, one at a time."""

    def __init__(self, config: PbgConfig, model: Model, adagrad: optimizer.Adagrad) -> None:
        self.config = config
        self.model = model
        self.adagrad = adagrad
        self.sampling = Sampling.of_training(config)

    def __call__(self, batch: Batch, tables: Mapping[Side, Table], generator: torch.Generator) -> StepFigures:
        """Move the rows and parameters that the batch touches."""
        all_negs = self.config.relations[batch.relation].all_negs
        local, rel_U, batch = self._local(batch)
        num_rows = {side: len(table) for side, table in tables.items()}
        pulls: dict[Side, list[tuple[Tensor, Tensor]]] = {side: [] for side in Side}
        figures = []
        for block in self.sampling.blocks(batch, num_rows, all_negs, generator):
            embeddings = {side: rows.requires_grad_() for side, rows in gather(block, tables).items()}
            figures.append(self._backward(local, block, embeddings))
            for side in Side:
                pulls[side].append((block.rows[side].flatten(), pull_of(embeddings[side]).flatten(0, 1)))
        loss, reg, lhs, rhs = (torch.stack(column).sum() for column in zip(*figures, strict=True))
        reg = reg + self._regularise_parameters(local, batch)
        self._update(tables, pulls, local, rel_U)
        return StepFigures(loss, reg, lhs, rhs)

    def _local(self, batch: Batch) -> tuple[Model, Tensor | None, Batch]:
        """The model with just the parameters that the batch touches, as leaves of the gradient.

        With dynamic relations these are the rows `rel_U`, and the batch's relations become positions in it.
        """
        parameters = self.model.parameters
        keys = self.model.keys_of(batch.relation)
        if batch.rel_B is None:
            leaves = {key: parameters[key].detach().requires_grad_() for key in keys}
            return self.model.with_parameters(leaves), None, batch
        rel_U, position_B = torch.unique(batch.rel_B, return_inverse=True)
        leaves = {key: parameters[key][rel_U].requires_grad_() for key in keys}
        return self.model.with_parameters(leaves), rel_U, replace(batch, rel_B=position_B)

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
            # with dynamic relations an edge is scored in two ways, each an example of its own
            times = 2 if self.config.dynamic_relations else 1
            for embedding_CKD in embeddings.values():
                positives_CPD = embedding_CKD.detach()[:, : block.num_positives]
                parts = self._parts(block.relation, positives_CPD)
                cost, slopes = losses.n3(parts, self.config.regularization_coef * times)
                pull_of(embedding_CKD)[:, : block.num_positives] += torch.cat(slopes, dim=-1)
                reg += cost
        return StepFigures(loss, reg, violators[Side.LHS], violators[Side.RHS])

    def _regularise_parameters(self, local: Model, batch: Batch) -> Tensor:
        """Add to the gradients of the operators' parameters: each edge's relation counts once."""
        reg = batch.weight_B.new_zeros(())
        if not self.config.regularization_coef:
            return reg
        for side in Side:
            leaves = [local.parameters[key] for key in local.operator_keys(batch.relation, side)]
            complex_pair = self._is_complex(batch.relation) and leaves
            for parts in [tuple(leaves)] if complex_pair else [(leaf,) for leaf in leaves]:
                weight: Tensor | float = float(len(batch))
                if batch.rel_B is not None:
                    count_U = torch.bincount(batch.rel_B, minlength=len(parts[0])).to(parts[0].dtype)
                    weight = count_U.view(-1, *[1] * (parts[0].dim() - 1))
                cost, slopes = losses.n3(
                    tuple(part.detach() for part in parts), weight * self.config.regularization_coef
                )
                reg += cost
                for leaf, slope in zip(parts, slopes, strict=True):
                    leaf.grad = slope if leaf.grad is None else leaf.grad + slope
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
            optimizer.update_rows(
                table.embeddings_ND, table.sum_N, rows_U, gradient_UD, self.config.lr, self.config.max_norm
            )
        for key, leaf in local.parameters.items():
            if leaf.grad is not None:
                self.adagrad.update(key, leaf.grad, rel_U)

    def _is_complex(self, relation: int) -> bool:
        return self.config.relations[relation].operator == "complex_diagonal"

    def _parts(self, relation: int, vectors: Tensor) -> tuple[Tensor, ...]:
        return vectors.chunk(2, dim=-1) if self._is_complex(relation) else (vectors,)


def pull_of(leaf: Tensor) -> Tensor:
    """The gradient that has arrived at a leaf."""
    if leaf.grad is None:
        raise TrainingError("no gradient has arrived at the embeddings; this is a defect of GraphMill")
    return leaf.grad
