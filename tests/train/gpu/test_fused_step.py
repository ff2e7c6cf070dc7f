"""The fused step is the step of train/step/plain.py, on the edges and candidates that it drew itself."""

from collections.abc import Iterator, Mapping
from typing import Any, Self

import pytest
import torch
from torch import Tensor

from graphmill.config import Config
from graphmill.vocab import Side
from tests.train.graphs import make_config, relation
from tests.train.step.test_plain import Scene
from train.edges.negative_sampling import Batch, Block, in_batch_negatives
from train.gpu import reference
from train.gpu.fused_pass import obstacle
from train.gpu.fused_step import FusedStep, NegativeGroup, Shape
from train.gpu.reference import KernelClock
from train.step.plain import PlainStep

NUM_ROWS = {"a": 40, "b": 30}
NUM_RELATIONS = 3


def config_of(*, dynamic: bool, same_type: bool, operator: str, **settings: Any) -> Config:
    right = "a" if same_type else "b"
    num_relations = 1 if dynamic else NUM_RELATIONS
    relations = [relation(operator, name=f"r{n}", lhs="a", rhs=right) for n in range(num_relations)]
    usual = {
        "dimension": 12,
        "relation_lr": 0.05,
        "batch_size": 24,
        "num_batch_negs": 12,
        "num_uniform_negs": 5,
    }
    usual |= {"dynamic_relations": dynamic, "global_emb": False}
    entities = {name: {"num_partitions": 1} for name in ({"a"} | {right})}
    return make_config("unused", entities=entities, relations=relations, **usual | settings)


class Drawn:
    """A Sampling that gives the blocks that the fused step has drawn."""

    def __init__(self, sample: reference.KernelSample, relation: int, first: int, *, dynamic: bool):
        self.block = Block(
            relation=relation,
            rel_CP=sample.rel_CP.long() if dynamic else None,
            weight_CP=sample.weight_CP.double(),
            rows={side: sample.rows_SCK[number].long() for number, side in enumerate(Side)},
            first_negative=dict.fromkeys(Side, first),
        )

    def drawing(self, _: float) -> Self:
        return self

    def blocks(self, batch: Batch, num_rows: Mapping[Side, int], *_: Any) -> Iterator[Block]:
        yield self.block


def edges_of(num_edges, num_rows, generator, *, weighted):
    """Random edges between so many rows of each side."""

    def column(limit: int) -> Tensor:
        return torch.randint(limit, (num_edges,), generator=generator, dtype=torch.int32)

    return reference.KernelEdges(
        column(num_rows[0]),
        column(NUM_RELATIONS).sort().values,
        column(num_rows[1]),
        torch.rand(num_edges, generator=generator) + 0.5 if weighted else None,
    )


def groups_of(config: Config, edges: reference.KernelEdges) -> list[NegativeGroup]:
    if config.dynamic_relations:
        return [NegativeGroup(0, 0, len(edges.rel))]
    counts = torch.bincount(edges.rel, minlength=NUM_RELATIONS).tolist()
    return [NegativeGroup(number, sum(counts[:number]), count) for number, count in enumerate(counts)]


CASES = [
    # dynamic, one type, operator, loss, settings, weighted
    (True, True, "complex_diagonal", "softmax", {"regularization_coef": 0.03}, False),
    (True, False, "diagonal", "ranking", {"num_batch_negs": 0, "num_uniform_negs": 6}, True),
    (True, True, "translation", "logistic", {"num_batch_negs": 5}, True),
    (False, True, "complex_diagonal", "softmax", {"regularization_coef": 0.03}, True),
    (False, False, "diagonal", "logistic", {"regularization_coef": 0.01}, False),
    (False, True, "none", "ranking", {}, True),
    (True, True, "none", "softmax", {"num_uniform_negs": 0}, True),
]


@pytest.mark.parametrize(("dynamic", "same", "operator", "loss", "settings", "weighted"), CASES)
def test_a_step_is_that_of_the_plain_trainer(dynamic, same, operator, loss, settings, weighted):
    config = config_of(dynamic=dynamic, same_type=same, operator=operator, loss_fn=loss, **settings)
    assert obstacle(config) is None
    generator = torch.Generator().manual_seed(3)
    num_rows = [NUM_ROWS[config.relations[0].entity_type(side)] for side in Side]
    edges = edges_of(200, num_rows, generator, weighted=weighted)
    if edges.weight is not None:
        edges = edges._replace(weight=edges.weight.double())
    group = groups_of(config, edges)[-1]
    positives = 12
    shape = Shape(group.relation, 2, positives)

    ours, plain = (Scene(config, group.relation, counts=NUM_ROWS) for _ in range(2))
    fused = FusedStep(config, ours.model, ours.adagrad, torch.device("cpu"), torch.float64)
    sides = ours.side_tables
    clock = KernelClock(77, 5, group.first, group.size, reference.half_bits(group.size), *num_rows)
    fused.clock_F.copy_(torch.tensor(clock))
    first, again = in_batch_negatives(config.num_batch_negs, positives)
    sample = reference.sample(edges, fused.clock_F, (2, positives, again, config.num_uniform_negs))
    fused.operators[group.relation].load(group.relation)
    fused(edges, shape, (sides[Side.LHS], sides[Side.RHS]))
    fused.operators[group.relation].write_back(group.relation, 1)

    step = PlainStep(config, plain.model, plain.adagrad)
    # as the plain trainer cuts a chunk of so many edges
    assert first == (0 if config.num_batch_negs >= positives else positives)
    drawn = Drawn(sample, group.relation, first, dynamic=dynamic)
    step.sampling = drawn  # type: ignore[assignment]
    batch = Batch(
        group.relation,
        {side: sample.rows_SCK[number][:, :positives].flatten().long() for number, side in enumerate(Side)},
        sample.rel_CP.flatten().long() if dynamic else None,
        sample.weight_CP.flatten().double(),
    )
    figures = step(batch, plain.side_tables, generator)
    torch.testing.assert_close(fused.sums, torch.stack([each.double() for each in figures]))
    torch.testing.assert_close(ours.state(), plain.state())
