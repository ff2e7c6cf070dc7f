"""Checks of a plug-in: what training, evaluation and a checkpoint expect of it.

All numbers are float64. A check that fails is one line of the error.

Shapes: D dimension, R relations, C chunks, P positives, N negatives, `...` any.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from graphmill.errors import ConfigError
from graphmill.formats.torch_files.read import described
from graphmill.model import comparators
from graphmill.model.abstract import (
    AbstractComparator,
    AbstractDynamicOperator,
    AbstractLossFunction,
    AbstractNegativeSampler,
    AbstractOperator,
    AbstractRegularizer,
    ChunkedEdges,
)
from graphmill.model.operators import operator_of
from graphmill.model.plug_ins import MASKED, takes_weights, with_parameters
from graphmill.vocab import Side

RELATIONS = 4
Failures = Iterator[str]  # a line for each check that fails


def differentiable(compute: Callable[..., Tensor], *inputs: Tensor) -> Failures:
    """Compare the gradients of a result with differences of the result."""
    leaves = tuple(tensor.detach().clone().requires_grad_() for tensor in inputs)
    if not compute(*leaves).requires_grad:
        yield "expected a result with a gradient, found one without"
        return
    try:
        torch.autograd.gradcheck(compute, leaves)
    except RuntimeError as error:
        yield f"gradients differ from differences of the result: {str(error).splitlines()[0]}"


def same(what: str, actual: Tensor, expected: Tensor) -> Failures:
    """Compare numbers, and say `what` was expected."""
    if actual.shape != expected.shape:
        yield f"expected the shape {shape(expected)} of {what}, found {shape(actual)}"
    elif actual.numel() and not torch.allclose(actual, expected, rtol=1e-6, atol=1e-8):
        difference = (actual - expected).abs().max().item()
        yield f"expected the numbers of {what}, found a difference of {difference:.3g}"


def normal(draw: torch.Generator, *shape: int) -> Tensor:
    """Draw random numbers of a shape."""
    return torch.randn(shape, generator=draw, dtype=torch.float64)


def shape(value: Any) -> Any:
    """Return the shape of a tensor, or the type of something else, for a message."""
    return tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__


def operator(
    make: partial[Any], reference: Any, dimension: int, draw: torch.Generator, *, is_dynamic: bool
) -> Failures:
    """Check an operator of static relations, or of dynamic ones."""
    module = make(dimension, *([RELATIONS] if is_dynamic else [])).double()
    parameters = yield from _drawn(module, draw)
    for name, value in parameters.items() if is_dynamic else ():
        if not value.dim() or len(value) != RELATIONS:
            rows = f"a row for each of {RELATIONS} relations"
            yield f"parameter {name!r}: expected {rows}, found {shape(value)}"
            return
    vectors = normal(draw, 2, 3, dimension)
    rel = torch.tensor([[0, 2, 2], [3, 0, 2]])  # relation 1 has no edge

    def apply(vectors: Tensor, *own: Tensor) -> Tensor:
        return _called(module, parameters, own, vectors, *([rel] if is_dynamic else []))

    own = tuple(parameters.values())
    moved = apply(vectors.clone(), *own)
    if moved.shape != vectors.shape:
        yield f"forward: expected the shape {shape(vectors)} of the vectors, found {shape(moved)}"
        return
    if not is_dynamic:
        yield from vector_wise(apply, vectors, own)
    yield from differentiable(apply, vectors, *own)
    yield from _unused(parameters, moved)
    if is_dynamic:
        yield from _rows_of_relations(make, module, reference, vectors, rel, moved)
    elif reference is not None:
        yield from same(f"the operator {reference}", moved, operator_of(reference).apply(vectors, own))


def _rows_of_relations(
    make: partial[Any], module: nn.Module, reference: Any, vectors: Tensor, rel: Tensor, moved: Tensor
) -> Failures:
    """Check that relation k depends on row k alone: a module with this one relation gives the same."""
    dimension, own = vectors.shape[-1], dict(module.named_parameters())
    for relation in sorted(set(rel.flatten().tolist())):
        row = {name: value.detach()[relation : relation + 1] for name, value in own.items()}
        alone = make(dimension, 1).double()
        mine = vectors[rel == relation]
        expected = functional_call(alone, row, (mine, torch.zeros(len(mine), dtype=torch.int64)))
        yield from same(f"relation {relation} by itself", moved[rel == relation], expected)
        if reference is None:
            continue
        values = [value[0] for value in row.values()]
        if isinstance(reference, str):
            static = operator_of(reference).apply(mine, values)
        else:
            other = reference(dimension, **make.keywords).double()
            static = _called(other, dict(other.named_parameters()), values, mine)
        name = reference if isinstance(reference, str) else reference.__name__
        yield from same(f"relation {relation} of {name}", moved[rel == relation], static)


def _drawn(module: nn.Module, draw: torch.Generator) -> Any:
    """Fill the parameters with random numbers; return them by name."""
    for name, value in module.named_parameters():
        if "." in name:
            yield f"parameter {name!r}: expected one of the operator itself, found one of a module inside"
        with torch.no_grad():
            value.copy_(torch.randn(value.shape, generator=draw, dtype=torch.float64))
    return dict(module.named_parameters())


def _called(module: nn.Module, names: Any, values: Sequence[Tensor], *arguments: Tensor) -> Tensor:
    moved: Tensor = functional_call(module, dict(zip(names, values, strict=True)), arguments)
    return moved


def vector_wise(apply: Callable[..., Tensor], vectors: Tensor, own: tuple[Tensor, ...]) -> Failures:
    """Check that each vector is transformed by itself, whatever the shape of the batch."""
    before, whole = vectors.clone(), apply(vectors, *own)
    if not torch.equal(before, vectors):
        yield "forward: expected the vectors unchanged, found that it overwrites them"
    for part in (vectors, vectors[0], vectors[0, 0]):
        moved = apply(part, *own)
        if moved.shape != part.shape:
            yield f"forward: expected the shape {shape(part)} of the vectors, found {shape(moved)}"
            return
    yield from same("one vector by itself", whole[1, 2], apply(vectors[1, 2], *own))
    yield from same("a second call", apply(vectors, *own), whole)


def _unused(parameters: dict[str, Tensor], moved: Tensor) -> Failures:
    if not parameters:
        return
    gradients = torch.autograd.grad(moved.square().sum(), list(parameters.values()), allow_unused=True)
    for name, gradient in zip(parameters, gradients, strict=True):
        if gradient is None:
            yield f"parameter {name!r}: expected a gradient, found that the result does not depend on it"


def comparator(make: partial[Any], reference: Any, dimension: int, draw: torch.Generator) -> Failures:
    """Check a comparator."""
    module = make().double()
    if names := [name for name, _ in module.named_parameters()]:
        yield f"parameter {names[0]!r}: expected none, a comparator is not trained"
    yield from vector_wise(module.prepare, normal(draw, 2, 3, dimension), ())
    lhs, rhs = (module.prepare(normal(draw, 2, 3, dimension)) for _ in range(2))
    other_lhs, other_rhs = (module.prepare(normal(draw, 2, num, dimension)) for num in (4, 5))
    scores = module(lhs, rhs, other_lhs, other_rhs)
    shapes = [(2, 3), (2, 3, 4), (2, 3, 5)]
    if list(map(shape, scores)) != shapes:
        yield f"forward: expected scores of shapes {shapes}, found {list(map(shape, scores))}"
        return
    pos, lhs_scores, rhs_scores = module(lhs, rhs, lhs, rhs)
    yield from same("the score of the same pair among lhs_neg", pos, lhs_scores.diagonal(dim1=1, dim2=2))
    yield from same("the score of the same pair among rhs_neg", pos, rhs_scores.diagonal(dim1=1, dim2=2))
    yield from same("scores of rhs_pos and lhs_neg, turned", rhs_scores, lhs_scores.transpose(1, 2))
    alone = module(lhs[1:], rhs[1:], other_lhs[1:], other_rhs[1:])
    for part, expected in zip(scores, alone, strict=True):
        yield from same("a chunk by itself", part[1:], expected)
    without = module(lhs, rhs, other_lhs[:, :0], other_rhs[:, :0])
    if list(map(shape, without)) != [(2, 3), (2, 3, 0), (2, 3, 0)]:
        yield "forward: expected no scores for no negatives"
    yield from differentiable(
        lambda *vectors: torch.cat([s.flatten() for s in module(*vectors)]), lhs, rhs, other_lhs, other_rhs
    )
    if reference is not None:
        yield from _as_built_in(module, reference, draw, dimension)


def _as_built_in(module: Any, reference: str, draw: torch.Generator, dimension: int) -> Failures:
    raw = [normal(draw, 2, num, dimension) for num in (3, 3, 4, 5)]
    scores = module(*(module.prepare(vectors) for vectors in raw))
    lhs, rhs, other_lhs, other_rhs = (comparators.prepare(reference, False, vectors) for vectors in raw)
    expected = (
        comparators.edge_scores(reference, False, lhs, rhs),
        comparators.matrix_scores(reference, False, rhs, other_lhs),
        comparators.matrix_scores(reference, False, lhs, other_rhs),
    )
    for ours, theirs in zip(scores, expected, strict=True):
        yield from same(f"the comparator {reference}", ours, theirs)


def loss(make: partial[Any], reference: Any, dimension: int, draw: torch.Generator) -> Failures:
    """Check a loss."""
    module = make().double()
    weighted = takes_weights(module)
    pos, neg = normal(draw, 5), normal(draw, 5, 3)
    weight = 0.5 + torch.rand(5, generator=draw, dtype=torch.float64)

    def total_loss(pos: Tensor, neg: Tensor, weight: Tensor = weight) -> Tensor:
        whole: Tensor = module(pos, neg, weight) if weighted else module(pos, neg)
        return whole

    whole = total_loss(pos, neg)
    if not isinstance(whole, Tensor) or whole.dim():
        yield f"forward: expected one number, the sum of the losses, found the shape {shape(whole)}"
        return
    singles = [total_loss(pos[i : i + 1], neg[i : i + 1], torch.ones_like(pos[:1])) for i in range(len(pos))]
    total = sum(single * (factor if weighted else 1) for single, factor in zip(singles, weight, strict=True))
    what = "the sum of the edges' losses" + (", times their weights" if weighted else "")
    yield from same(what, whole, torch.as_tensor(total))
    yield from _masked(total_loss, pos, neg)
    if not bool(torch.isfinite(torch.as_tensor(total_loss(pos, neg[:, :0]))).all()):
        yield "forward: expected a finite loss for edges without negatives"
    yield from differentiable(total_loss, pos, neg)
    if reference is not None:
        name = getattr(reference, "__name__", "the reference")
        yield from same(name, whole, reference(pos, neg, weight) if weighted else reference(pos, neg))


def _masked(loss: Callable[..., Tensor], pos: Tensor, neg: Tensor) -> Failures:
    """Check that the loss does not depend on the score of an edge's own entity, which is MASKED."""
    masked, lower = neg.clone(), neg.clone()
    masked[:, 1], lower[:, 1] = MASKED, 2 * MASKED
    if not torch.isfinite(loss(pos, masked)):
        yield f"forward: expected a finite loss with a negative of score {MASKED:g}, an edge's own entity"
    else:
        yield from same(f"negatives of score {2 * MASKED:g}", loss(pos, masked), loss(pos, lower))


def regularizer(make: partial[Any], reference: Any, dimension: int, draw: torch.Generator) -> Failures:
    """Check a regularizer."""
    src, dst = normal(draw, 5, dimension), normal(draw, 5, dimension)
    rel = torch.tensor([0, 2, 2, 3, 0])
    for number, is_dynamic in ((None, False), (RELATIONS, True)):
        operator = _Diagonal(number, dimension, draw)
        more = (operator, rel) if is_dynamic else (operator,)
        name = "forward_dynamic" if is_dynamic else "forward"
        cost = getattr(make(0.5), name)(src, dst, *more)
        if not isinstance(cost, Tensor) or cost.dim():
            yield f"{name}: expected one number, found the shape {shape(cost)}"
            continue
        if not bool(cost >= 0):
            yield f"{name}: expected a penalty that is not negative, found {float(cost):g}"
        doubled = getattr(make(1.0), name)(src, dst, *more)
        yield from same(f"{name} with half of the weight, twice", cost * 2, doubled)

        def penalty(src: Tensor, dst: Tensor, own: Tensor, *, called: str = name, rest: Any = more) -> Tensor:
            bound = getattr(make(0.5), called)
            return with_parameters(rest[0], {"diagonal": own}, lambda op: bound(src, dst, op, *rest[1:]))

        yield from differentiable(penalty, src, dst, operator.diagonal.detach())
        if reference is not None and not is_dynamic:
            yield from same("the reference", cost, torch.as_tensor(reference(src, dst, operator)) * 0.5)


class _Diagonal(nn.Module):
    """An operator as regularizers see it."""

    def __init__(self, num_relations: int | None, dimension: int, draw: torch.Generator) -> None:
        super().__init__()
        lead = () if num_relations is None else (num_relations,)
        self.dim = dimension
        self.diagonal = nn.Parameter(normal(draw, *lead, dimension))

    def get_operator_params_for_reg(self, rel: Tensor | None = None) -> Tensor:
        return (self.diagonal if rel is None else self.diagonal[rel]).abs()

    def prepare_embs_for_reg(self, embs: Tensor) -> Tensor:
        return embs.abs()


def negative_sampler(make: partial[Any], reference: Any, dimension: int, draw: torch.Generator) -> Failures:
    """Check a negative sampler."""
    for num_rows, num_negatives in ((50, 7), (1, 2)):
        columns = [torch.randint(num_rows, (3, 4), generator=draw) for _ in range(2)]
        edges = ChunkedEdges(columns[0], columns[1], None, torch.ones(3, 4), 0)
        before = [column.clone() for column in columns]
        sampler = make(num_negatives)
        for side in Side:
            drawn, again = (
                sampler.sample(edges, side, num_rows, torch.Generator().manual_seed(7)) for _ in range(2)
            )
            is_matrix = isinstance(drawn, Tensor) and drawn.dtype == torch.int64 and drawn.dim() == 2
            if not is_matrix or len(drawn) != 3:
                yield f"sample: expected rows of torch.int64 and shape (3, K), found {described(drawn)}"
                return
            if drawn.numel() and not 0 <= int(drawn.min()) <= int(drawn.max()) < num_rows:
                rows = f"{int(drawn.min())} to {int(drawn.max())}"
                yield f"sample: expected rows from 0 to {num_rows - 1}, found {rows}"
            if not torch.equal(drawn, again):
                yield "sample: expected the same rows for one seed, found others; draw from `generator` alone"
        if not all(map(torch.equal, before, columns)):
            yield "sample: expected the edges unchanged, found that it overwrites them"


_CHECKS: dict[type, Callable[..., Failures]] = {
    AbstractOperator: partial(operator, is_dynamic=False),
    AbstractDynamicOperator: partial(operator, is_dynamic=True),
    AbstractComparator: comparator,
    AbstractLossFunction: loss,
    AbstractRegularizer: regularizer,
    AbstractNegativeSampler: negative_sampler,
}


def check(
    class_: type, reference: Any = None, *, dimension: int = 8, seed: int = 0, **arguments: Any
) -> None:
    """Check a class of a user.

    Args:
        class_: subclass of one of the abstract classes.
        reference: what must give the same numbers. For an operator or a comparator, the name of a built-in
            one; for an operator of dynamic relations, also the class for static ones; for a loss or a
            regularizer, a function with the arguments of `forward`. None: nothing is compared.
        dimension: length of the vectors.
        seed: seed of all random numbers.
        arguments: arguments of the class beside the dimension, such as margin=0.1.

    Raises:
        ConfigError: a check fails; the message has a line for each.
    """
    draw = torch.Generator().manual_seed(seed)
    for base, checks in _CHECKS.items():
        if issubclass(class_, base):
            failures: list[str] = []
            try:
                failures.extend(checks(partial(class_, **arguments), reference, dimension, draw))
            except Exception as error:  # of the user's own code
                failures.append(f"fails with {type(error).__name__}: {error}")
            if failures:
                raise ConfigError("\n".join(f"{class_.__name__}: {failure}" for failure in failures))
            return
    names = ", ".join(base.__name__ for base in _CHECKS)
    raise ConfigError(f"{class_.__name__}: expected a subclass of one of {names}")
