"""A gradient step in plain torch: score, loss, gradient, update. Read `PlainStep.step` first.

The losses' gradients are known in closed form; autograd carries them through comparator and operator back to
the rows. Gradients of the same row are summed, then Adagrad moves the row.

Shapes: B edges of a batch, C chunks, P positives per chunk, K candidates of a chunk, M negatives of a
positive, D dimension, U distinct rows.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from graphmill.ask.model import Model
from graphmill.config import Config
from graphmill.errors import ConfigError
from graphmill.model import losses, operators
from graphmill.vocab import Side
from train.edges.negative_sampling import Batch, Block, Sampling, sides_with_negatives
from train.model import optimizer, regularizers
from train.step.step import SideTables, Step, StepFigures

RowGradients = dict[Side, list[tuple[Tensor, Tensor]]]  # rows [K] with repetitions, gradients [K, D]


class StepScores(NamedTuple):
    """Scores of one side's corruption."""

    pos_CP: Tensor
    neg_CPM: Tensor


# The loss of both sides, and the gradients of pos_CP and neg_CPM of lhs and rhs, None for none; may overwrite
# neg_CPM. Negatives are drawn from so many entities of each side, by their weights.
EdgeLoss = Callable[
    [Config, Mapping[Side, StepScores], Block, Mapping[Side, float]], tuple[Tensor, list[Tensor | None]]
]


def loss_of_edges(
    config: Config, scored: Mapping[Side, StepScores], block: Block, _: Mapping[Side, float]
) -> tuple[Tensor, list[Tensor | None]]:
    """Compute the loss that the configuration names."""
    lhs, rhs = (
        losses.loss_gradient(
            config.loss_fn, config.margin, of_side.pos_CP.detach(), of_side.neg_CPM.detach(), block.weight_CP
        )
        for of_side in (scored[Side.LHS], scored[Side.RHS])
    )
    return lhs.loss_CP.sum() + rhs.loss_CP.sum(), [lhs.pos_CP, lhs.neg_CPM, rhs.pos_CP, rhs.neg_CPM]


class PlainStep(Step[Batch]):
    """Trains on one batch of edges after another, in plain torch: every configuration, on any device."""

    def __init__(
        self, config: Config, model: Model, adagrad: optimizer.Adagrad, loss: EdgeLoss = loss_of_edges
    ) -> None:
        super().__init__(config, model, adagrad)
        self.loss = loss
        self.sampling = Sampling.of_training(config)
        # None: N3 in closed form
        self.regularizer = regularizers.regularizer_of(config) if regularizers.is_plug_in(config) else None

    def step(self, batch: Batch, blocks: Sequence[Block], tables: SideTables) -> StepFigures:
        """Take one gradient step on the blocks: score, loss, gradient, update."""
        model, rel_U, blocks = _touched_by(blocks, self.model, batch.relation, whole=self.relation_weight > 0)
        row_gradients: RowGradients = {side: [] for side in Side}
        figures = []
        for block in blocks:
            embeddings = {side: rows.requires_grad_() for side, rows in gather(batch, block, tables).items()}
            scored = scores(model, block, embeddings)
            detached = [[score.detach() for score in scored[side]] for side in Side]
            violators = [torch.count_nonzero(neg_CPM > pos_CP.unsqueeze(-1)) for pos_CP, neg_CPM in detached]
            loss, score_gradients = self.loss(self.config, scored, block, batch.sum_weights(tables))
            backward([score for side in Side for score in scored[side]], score_gradients)
            loss += self._predict_relations(model, block, embeddings)
            reg = self._regularise_entities(model, block, embeddings)
            figures.append(StepFigures(loss, reg, *violators))
            for side in Side:
                row_gradient = block.rows[side].flatten(), gradient_of(embeddings[side]).flatten(0, 1)
                row_gradients[side].append(
                    batch.bags[side].feature_gradients(*row_gradient) if side in batch.bags else row_gradient
                )
        reg = self._regularise_operators(model, batch.relation, blocks)
        self._update_rows(tables, row_gradients, self.frozen.sides(self.config, batch.relation))
        self.adagrad.update(model.parameters, rel_U, self.lr_scale)
        total = _summed(figures)
        return total._replace(reg=total.reg + reg)

    def __call__(self, batch: Batch, tables: SideTables, generator: torch.Generator) -> StepFigures:
        """Draw negatives, and move the rows and parameters that the batch touches."""
        blocks = self.sampling.drawing(self.share_of_negatives).blocks(batch, tables, generator)
        steps = zip(*(block.steps() for block in blocks), strict=True)
        return _summed([self.step(batch, blocks, tables) for blocks in steps])

    def _predict_relations(
        self, model: Model, block: Block, embeddings: Mapping[Side, Tensor]
    ) -> Tensor | float:
        """Add the loss of the edges' relations to the gradients, once for each operator; return it."""
        if not self.relation_weight or block.rel_CP is None:
            return 0.0
        size, operator = block.num_positives, self.config.relations[block.relation].operator
        own = {side: embedding.detach()[:, :size].flatten(0, 1) for side, embedding in embeddings.items()}
        total = block.weight_CP.new_zeros(())
        for side in (answered.other for answered in sides_with_negatives(self.config)):
            leaves = [model.parameters[key] for key in model.operator_keys(block.relation, side)]
            weight_E = block.weight_CP.flatten() * self.relation_weight
            ends = own[side], own[side.other]
            rel_E = block.rel_CP.flatten()
            predicted = regularizers.predict_relations(operator, *ends, leaves, rel_E, weight_E)
            total += predicted.loss
            for place, gradient_ED in ((side, predicted.entity_ED), (side.other, predicted.answer_ED)):
                gradient_CKD = gradient_of(embeddings[place])
                gradient_CKD[:, :size] += gradient_ED.view_as(gradient_CKD[:, :size])
        return total

    def _regularise_entities(self, model: Model, block: Block, embeddings: Mapping[Side, Tensor]) -> Tensor:
        """Add the penalty of the edges' entities to their gradients; return the cost."""
        reg = block.weight_CP.new_zeros(())
        if not self.config.regularization_coef:
            return reg
        if self.regularizer is not None:
            own = {
                side: embedding[:, : block.num_positives].flatten(0, 1)
                for side, embedding in embeddings.items()
            }
            rel_E = None if block.rel_CP is None else block.rel_CP.flatten()
            cost = regularizers.penalty(self.regularizer, model, block.relation, own, rel_E)
            if cost.requires_grad:
                cost.backward()  # type: ignore[no-untyped-call]
            return cost.detach()
        # With an operator for each side, an edge has two scores: each is an example.
        examples = 2 if self.model.two_sided else 1
        operator = self.config.relations[block.relation].operator
        for embedding_CKD in embeddings.values():
            parts = operators.parts(operator, embedding_CKD.detach()[:, : block.num_positives])
            cost, slopes = losses.n3(parts, self.config.regularization_coef * examples)
            gradient_of(embedding_CKD)[:, : block.num_positives] += torch.cat(slopes, dim=-1)
            reg += cost.sum()
        return reg

    def _regularise_operators(self, model: Model, relation: int, blocks: Sequence[Block]) -> Tensor:
        """Add N3 of the operators' parameters to their gradients, once per edge; return the cost."""
        weight_B = torch.cat([block.weight_CP.flatten() for block in blocks])
        reg = weight_B.new_zeros(())
        if not self.config.regularization_coef or self.regularizer is not None:
            return reg
        operator, rel_B = self.config.relations[relation].operator, _relations_of(blocks)
        coefficient_B = torch.full_like(weight_B, self.config.regularization_coef)
        for side in Side:
            leaves = [model.parameters[key] for key in model.operator_keys(relation, side)]
            reg += regularizers.n3_of_operator(operator, leaves, coefficient_B, rel_B)
        return reg

    def _update_rows(self, tables: SideTables, row_gradients: RowGradients, frozen: frozenset[Side]) -> None:
        lr, max_norm = self.config.lr * self.lr_scale, self.config.max_norm
        one_table = tables[Side.LHS] is tables[Side.RHS]
        for sides in [tuple(Side)] if one_table else [(side,) for side in Side]:
            if sides[0] in frozen:
                continue
            rows, gradients = zip(*(pair for side in sides for pair in row_gradients[side]), strict=True)
            rows_U, gradient_UD = optimizer.sum_duplicates(torch.cat(rows), torch.cat(gradients))
            table = tables[sides[0]]
            optimizer.update_rows(table.embeddings_ND, table.sums, rows_U, gradient_UD, lr, max_norm)


def backward(values: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
    """Carry the gradients of values back to the rows; those without a gradient move nothing."""
    pairs = [pair for pair in zip(values, gradients, strict=True) if pair[1] is not None]
    torch.autograd.backward([value for value, _ in pairs], [gradient for _, gradient in pairs])


def gather(batch: Batch, block: Block, tables: SideTables) -> dict[Side, Tensor]:
    """Read the candidates' embeddings of each side, [C, K, D]."""
    gathered = {}
    for side, table in tables.items():
        rows_CK, bags = block.rows[side], batch.bags.get(side)
        if bags is None:
            vectors = table.embeddings_ND.index_select(0, rows_CK.flatten())
        else:
            vectors = bags.means(table.embeddings_ND, rows_CK.flatten())
        gathered[side] = vectors.view(*rows_CK.shape, -1)
    return gathered


def scores(model: Model, block: Block, embeddings: Mapping[Side, Tensor]) -> dict[Side, StepScores]:
    """Score the block's edges and their negatives on each side; an edge's own entity is masked."""
    chunk = block.num_positives
    candidates = {side: model.candidates(block.relation, side, embeddings[side]) for side in Side}
    scored = {}
    for side in Side:
        if model.two_sided:
            others_CPD = embeddings[side.other][:, :chunk]
            query_CPD = model.query(block.relation, side, others_CPD, block.rel_CP)
        else:  # these candidates have gone through the operator already
            query_CPD = candidates[side.other][:, :chunk]
        pos_CP = model.edge_scores(query_CPD, candidates[side][:, :chunk], side)
        first, half = block.first_negative[side], model.takes_half(query_CPD.device)
        neg_CPM = model.matrix_scores(query_CPD, candidates[side][:, first:], side, half=half)
        losses.mask_own(neg_CPM, block.rows[side], chunk, first)
        scored[side] = StepScores(pos_CP, neg_CPM)
    return scored


def touched_parameters(
    model: Model, relation: int, rel: Tensor | None
) -> tuple[Model, Tensor | None, Tensor | None]:
    """Copy the parameters that edges touch into another model, as leaves of the gradient.

    With dynamic relations, return (model with the rows `rel_U`, rel_U, position of each edge's relation in
    rel_U); otherwise, and for operators that take whole parameters alone, (model, None, `rel`).
    """
    keys = model.keys_of(relation)
    operator = operators.operator_of(model.config.relations[relation].operator)
    if rel is None or not operator.takes_rows:
        # With `data`, autograd allows other threads to move the parameters meanwhile (Hogwild).
        leaves = {key: model.parameters[key].data.requires_grad_() for key in keys}
        return model.with_parameters(leaves), None, rel
    rel_U, position = torch.unique(rel, return_inverse=True)
    leaves = {key: model.parameters[key][rel_U].requires_grad_() for key in keys}
    return model.with_parameters(leaves), rel_U, position


def gradient_of(leaf: Tensor) -> Tensor:
    """Return the gradient that `backward` has stored at a leaf."""
    if leaf.grad is None:
        raise ConfigError("no gradient comes through a plug-in; graphmill.plugins.check tells more")
    return leaf.grad


def _touched_by(
    blocks: Sequence[Block], model: Model, relation: int, *, whole: bool
) -> tuple[Model, Tensor | None, Sequence[Block]]:
    """Return `touched_parameters` (all, with `whole`), and the blocks with positions for relations."""
    rel_B = None if whole else _relations_of(blocks)
    local, rel_U, position_B = touched_parameters(model, relation, rel_B)
    if position_B is None:
        return local, None, blocks
    positions = torch.split(position_B, [block.weight_CP.numel() for block in blocks])
    pairs = zip(blocks, positions, strict=True)
    return local, rel_U, [replace(block, rel_CP=places.view_as(block.weight_CP)) for block, places in pairs]


def _relations_of(blocks: Iterable[Block]) -> Tensor | None:
    """Return each edge's relation, [B]; None with static relations."""
    rel = [block.rel_CP.flatten() for block in blocks if block.rel_CP is not None]
    return torch.cat(rel) if rel else None


def _summed(figures: Sequence[StepFigures]) -> StepFigures:
    return StepFigures(*(torch.stack(column).sum() for column in zip(*figures, strict=True)))
