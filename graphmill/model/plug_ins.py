"""Plug-ins behind the interface of the built-in operators and comparators.

Parameters are tensors by name, which a module gets for the time of a call: one module serves all relations.
Modules are made once per thread, since a call puts the parameters into the module.

Shapes: D dimension, R relations, P queries, N candidates, `...` any number of leading dimensions.
"""

import inspect
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, cast

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call

from graphmill.errors import ConfigError
from graphmill.model.abstract import AbstractComparator
from graphmill.model.built_in import Array
from graphmill.model.registry import COMPARATORS, DYNAMIC_OPERATORS, OPERATORS, Registry

MASKED = -1e9
"""Score of a negative that is the edge's own entity."""

_modules = threading.local()


@dataclass(frozen=True)
class PlugInOperator:
    """An operator that a user has registered."""

    name: str
    parts = 1
    is_linear = is_product = takes_rows = False
    has_matrices = True  # it may have

    def parameter_names(self, dynamic: bool, dimension: int) -> tuple[str, ...]:
        """Names of the parameters, in the order of the class."""
        parameters = dict(self.module(dimension, 1 if dynamic else None).named_parameters())
        if nested := [name for name in parameters if "." in name]:
            raise ConfigError(
                f"operator {self.name!r}: expected parameters of its own, found {nested[0]!r} of a module "
                "inside, which PyTorch-BigGraph cannot save; make it an nn.Parameter of the operator"
            )
        are_rows = {name: value.dim() > 0 and len(value) == 1 for name, value in parameters.items()}
        if dynamic and (other := [name for name, is_row in are_rows.items() if not is_row]):
            raise ConfigError(
                f"operator {self.name!r}: expected a row for each dynamic relation in every parameter, found "
                f"another shape of {other[0]!r}"
            )
        return tuple(parameters)

    def apply(self, vectors: Array, parameters: Sequence[Array], rel: Any = None) -> Array:
        """Transform vectors [..., D] by the parameters; `rel` [...] numbers their dynamic relations."""
        if isinstance(vectors, np.ndarray):
            rows = None if rel is None else torch.from_numpy(rel)
            return _by_torch(lambda given, *own: self.apply(given, own, rows), vectors, *parameters)
        names = self.parameter_names(rel is not None, vectors.shape[-1])
        own = dict(zip(names, parameters, strict=True))
        arguments = (vectors,) if rel is None else (vectors, rel)
        num_relations = None if rel is None else (len(parameters[0]) if parameters else 1)
        module = self.module(vectors.shape[-1], num_relations, vectors.device)
        transformed = functional_call(module, own, arguments)
        if np.shape(transformed) != vectors.shape:
            raise ConfigError(
                f"operator {self.name!r}: expected vectors of shape {tuple(vectors.shape)} as they came, "
                f"found {tuple(np.shape(transformed))}"
            )
        return cast(Array, transformed)

    def apply_one(self, vectors: Array, parameters: Sequence[Array], *, dynamic: bool) -> Array:
        """Transform vectors [..., D] by one relation, whose parameters are rows of dynamic ones if so."""
        if not dynamic:
            return self.apply(vectors, parameters)
        library: Any = np if isinstance(vectors, np.ndarray) else torch
        rel = library.zeros(vectors.shape[:-1], dtype=library.int64)
        return self.apply(vectors, [parameter[None] for parameter in parameters], rel)

    def initial(
        self, dimension: int, num_relations: int | None, init: object, init_scale: float, generator: Generator
    ) -> dict[str, Tensor]:
        """Make new parameters as the class makes them, with random numbers from `generator`."""
        self.parameter_names(num_relations is not None, dimension)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
            module = _made(self._class(num_relations is not None), self.name, dimension, num_relations)
        return {name: value.detach().clone() for name, value in module.named_parameters()}

    def module(
        self, dimension: int, num_relations: int | None, device: torch.device | str = "cpu"
    ) -> nn.Module:
        """This thread's module of these sizes."""
        class_ = self._class(num_relations is not None)
        made: dict[Any, nn.Module] = _modules.__dict__.setdefault("made", {})
        key = class_, dimension, num_relations, str(device)
        if key not in made:
            with torch.random.fork_rng(devices=[]):
                made[key] = _made(class_, self.name, dimension, num_relations).to(device)
            made[key].requires_grad_(requires_grad=False)
        return made[key]

    def _class(self, dynamic: bool) -> type:
        return (DYNAMIC_OPERATORS if dynamic else OPERATORS).get_class(self.name)


def _made(class_: type, name: str, dimension: int, num_relations: int | None) -> nn.Module:
    arguments = (dimension,) if num_relations is None else (dimension, num_relations)
    made: nn.Module = _instance("operator", name, lambda: class_(*arguments), f" of dimension {dimension}")
    return made


def _instance(kind: str, name: str, make: Callable[[], Any], sizes: str = "") -> Any:
    try:
        return make()
    except Exception as error:  # of the user's own code
        raise ConfigError(
            f"{kind} {name!r}: cannot be made{sizes}: {type(error).__name__}: {error}"
        ) from error


def with_parameters(
    module: nn.Module, parameters: Mapping[str, Tensor], compute: Callable[[Any], Tensor]
) -> Tensor:
    """Call `compute` with the module while it has other parameters."""
    own = {f"module.{name}": value for name, value in parameters.items()}
    computed: Tensor = functional_call(_Holder(module), own, (compute,))
    return computed


class _Holder(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, compute: Callable[[Any], Tensor]) -> Tensor:
        return compute(self.module)


@lru_cache(maxsize=64)
def _comparator(class_: type, name: str, device: str) -> AbstractComparator:
    made: AbstractComparator = _instance("comparator", name, class_)
    if any(True for _ in made.parameters()):
        raise ConfigError(
            f"comparator {name!r}: expected no nn.Parameter, found some: a comparator is not trained; put "
            "them into an operator"
        )
    return made.to(device)


def prepare(name: str, vectors: Array) -> Array:
    """Make vectors [..., D] ready for the scores below."""
    if isinstance(vectors, np.ndarray):
        return _by_torch(partial(prepare, name), vectors)
    module = _comparator(COMPARATORS.get_class(name), name, str(vectors.device))
    return module.prepare(vectors)


def edge_scores(name: str, queries: Array, candidates: Array, *, candidates_are_lhs: bool) -> Array:
    """Score pairs of prepared vectors: [..., D] and [..., D] -> [...]."""
    if isinstance(queries, np.ndarray):
        score = partial(edge_scores, name, candidates_are_lhs=candidates_are_lhs)
        return _by_torch(score, queries, candidates)
    queries, candidates = torch.broadcast_tensors(queries, candidates)  # type: ignore[no-untyped-call]
    query_1PD, candidate_1PD = (rows.reshape(1, -1, rows.shape[-1]) for rows in (queries, candidates))
    lhs, rhs = (candidate_1PD, query_1PD) if candidates_are_lhs else (query_1PD, candidate_1PD)
    pos, _, _ = _scores(name, lhs, rhs, lhs[:, :0], rhs[:, :0])
    return pos.reshape(queries.shape[:-1])


def matrix_scores(name: str, queries: Array, candidates: Array, *, candidates_are_lhs: bool) -> Array:
    """Score every query against every candidate: [..., P, D] and [..., N, D] -> [..., P, N]."""
    if isinstance(queries, np.ndarray):
        score = partial(matrix_scores, name, candidates_are_lhs=candidates_are_lhs)
        return _by_torch(score, queries, candidates)
    query_CPD, candidate_CND = (  # not -1, which torch refuses where there are no candidates
        rows.reshape(math.prod(rows.shape[:-2]), *rows.shape[-2:]) for rows in (queries, candidates)
    )
    if candidates_are_lhs:
        _, scores, _ = _scores(name, query_CPD, query_CPD, candidate_CND, candidate_CND[:, :0])
    else:
        _, _, scores = _scores(name, query_CPD, query_CPD, candidate_CND[:, :0], candidate_CND)
    shape = (*queries.shape[:-1], candidates.shape[-2])
    # a new array that its caller may overwrite, which a comparator's own result may not be
    return scores.reshape(shape).clone()


def _scores(name: str, *vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    lhs_pos, _, lhs_neg, rhs_neg = vectors
    module = _comparator(COMPARATORS.get_class(name), name, str(lhs_pos.device))
    scores: tuple[Tensor, Tensor, Tensor] = module(*vectors)
    expected = [lhs_pos.shape[:2], *((*lhs_pos.shape[:2], neg.shape[1]) for neg in (lhs_neg, rhs_neg))]
    found = map(np.shape, scores) if isinstance(scores, tuple | list) else [np.shape(scores)]
    shapes = [[tuple(shape) for shape in shapes] for shapes in (expected, found)]
    if shapes[0] != shapes[1]:
        raise ConfigError(f"comparator {name!r}: expected scores of shapes {shapes[0]}, found {shapes[1]}")
    return scores


def _by_torch(compute: Callable[..., Any], *arrays: Array) -> Array:
    """Compute an array from arrays by a function of tensors."""
    with torch.no_grad():
        tensors = [torch.from_numpy(np.require(array, requirements=["C", "W"])) for array in arrays]
        return cast(Array, compute(*tensors).numpy())


def takes_weights(loss: nn.Module) -> bool:
    """Tell whether a loss takes the edges' weights, as at PBG's HEAD; in release 1.0.0 none does."""
    try:
        inspect.signature(loss.forward).bind(None, None, None)
    except TypeError:
        return False
    return True


def made(registry: Registry, name: str, *arguments: Any, **more: Any) -> Any:
    """Make an object of a registered class, with `arguments`, and those of `more` that it takes."""
    class_ = registry.get_class(name)
    parameters = inspect.signature(class_).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    taken = {key: value for key, value in more.items() if takes_all or key in parameters}
    return _instance(registry.kind, name, lambda: class_(*arguments, **taken))
