"""States of optimizers, which number a model's parameters in the order of `graphmill.model.parameters`, and
PBG's configuration beside them: both come from files of anybody.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from graphmill.checkpoints.finite import check_finite
from graphmill.errors import FormatError
from graphmill.storage.as_json import refusal
from graphmill.vocab import Side

if TYPE_CHECKING:
    from torch import Tensor


class _Group(BaseModel):
    params: list[int] = []


class _State(BaseModel):
    state: dict[int, dict[str, Any]] = {}
    param_groups: list[_Group] = []


class _Entity(BaseModel):
    num_partitions: Annotated[int, Field(ge=1)] = 1
    dimension: Annotated[int, Field(ge=1)] | None = None


class _Relation(BaseModel):
    name: str
    lhs: str
    rhs: str
    operator: str = "none"


class _Configuration(BaseModel):
    entities: dict[str, _Entity] = {}
    relations: list[_Relation] | tuple[_Relation, ...] = ()
    dimension: Annotated[int, Field(ge=1)] | None = None
    comparator: str = "cos"
    edge_paths: list[str] | tuple[str, ...] = ()
    num_epochs: Annotated[int, Field(ge=0)] = 1
    num_edge_chunks: Annotated[int, Field(ge=0)] | None = None


def checked_state(state: Any, where: str) -> dict[str, Any]:
    """Refuse what is no state_dict() of an optimizer."""
    return _checked(_State, state, f"{where}: expected the state_dict() of an optimizer")


def checked_config(config: Any, where: str) -> dict[str, Any]:
    """Refuse a configuration whose entities, relations or numbers are not as PBG has them."""
    return _checked(_Configuration, config, f"{where}: expected PyTorch-BigGraph's configuration")


def _checked(form: type[BaseModel], content: Any, expected: str) -> dict[str, Any]:
    try:
        form.model_validate(content, strict=True)
    except ValidationError as error:
        raise refusal(error, expected) from error
    known: dict[str, Any] = content
    return known


def reordered(
    state: Mapping[str, Any] | None, before: Sequence[str], after: Sequence[str]
) -> dict[str, Any] | None:
    """Renumber an optimizer's state_dict() from the order `before` to the order `after`."""
    if state is None or "state" not in state:
        return None if state is None else dict(state)
    numbers = {number: after.index(key) for number, key in enumerate(before)}
    states = {numbers.get(number, number): entry for number, entry in state["state"].items()}
    return dict(state) | {"state": dict(sorted(states.items()))}


def table_sums(state: Mapping[str, Any], shape: tuple[int, int], where: str) -> "Tensor | None":
    """The Adagrad sums of a table of `shape` (N, D): float32 [N] row-wise or [N, D]; None before a step."""
    import torch

    if not state.get("state"):
        return None
    sums = state["state"].get(0, {}).get("sum")
    if not isinstance(sums, torch.Tensor):
        raise FormatError(f"{where}: optimizer state: expected 'sum' of parameter 0, found none")
    if (sums_shape := tuple(sums.shape)) not in (shape[:1], shape):
        raise FormatError(
            f"{where}: optimizer state: expected sums of shape {shape[:1]} or {shape}, found {sums_shape}"
        )
    return sums.to(torch.float32)


def sums_of(state: Mapping[str, Any] | None) -> dict[int, Any]:
    """The Adagrad sums in an optimizer's state_dict(), by number of the parameter."""
    entries = (state or {}).get("state", {})
    return {number: entry["sum"] for number, entry in entries.items() if "sum" in entry}


def check_sums(state: Mapping[str, Any] | None, parameters: Mapping[str, "Tensor"], where: str) -> None:
    """Check that an optimizer's sums have the shapes of the parameters, by their numbers."""
    sums = sums_of(state)
    for number, (key, value) in enumerate(parameters.items()):
        shape = getattr(sums.get(number), "shape", value.shape)
        if shape != value.shape:
            raise FormatError(
                f"{where}: optimizer state of {key!r}: expected sums of shape {tuple(value.shape)}, found "
                f"{tuple(shape)}"
            )


def check_finite_sums(state: Mapping[str, Any] | None, parameters: Sequence[str | None], where: str) -> None:
    """Refuse an optimizer's state_dict() with NaN or infinity; `parameters` has their names by number."""
    import torch

    for number, sums in sums_of(state).items():
        if isinstance(sums, torch.Tensor) and sums.is_floating_point():
            key = parameters[number] if 0 <= number < len(parameters) else number
            of = "" if key is None else f" of parameter {key!r}"
            check_finite(sums.detach().cpu().float().numpy(), f"{where}: optimizer sums{of}")


@dataclass(frozen=True)
class RecordedState:
    """A state_dict() as JSON types, without the tensors named `sum`."""

    state: dict[int, dict[str, Any]]
    param_groups: list[dict[str, Any]]


def without_sums(state: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the parts of a state_dict() that can be recorded, as a `RecordedState` in JSON types."""
    if state is None:
        return None
    plain = {
        number: {name: _plain(value, name) for name, value in entry.items() if name != "sum"}
        for number, entry in state.get("state", {}).items()
    }
    groups = state.get("param_groups", [])
    plain_groups = [{name: _plain(value, name) for name, value in each.items()} for each in groups]
    return {"state": plain, "param_groups": plain_groups}


def with_sums(recorded: RecordedState, sums: Mapping[int, "Tensor"], where: str) -> dict[str, Any]:
    """The inverse of `without_sums`: a state_dict() with the sums, by number of the parameter.

    Equal names are one string, as in a state_dict() of torch: so torch.save writes the same bytes.
    """
    restored = {
        number: {sys.intern(name): _restored(value, where) for name, value in of_parameter.items()}
        for number, of_parameter in recorded.state.items()
    }
    for number, value in sums.items():
        restored.setdefault(number, {})["sum"] = value
    groups = [{sys.intern(name): value for name, value in group.items()} for group in recorded.param_groups]
    return {"state": restored, "param_groups": groups}


def _plain(value: Any, name: str) -> Any:
    import torch

    if isinstance(value, torch.Tensor) and value.dim() == 0:
        return {"tensor": str(value.dtype).removeprefix("torch."), "value": value.item()}
    if value is None or isinstance(value, bool | int | float | str | list):
        return value
    raise FormatError(f"optimizer state {name!r}: expected a number, found {type(value).__name__}")


def _restored(value: Any, where: str) -> Any:
    import torch

    if not isinstance(value, dict):
        return value
    try:
        return torch.tensor(value["value"], dtype=getattr(torch, value["tensor"]))
    except (LookupError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise FormatError(f"{where}: expected a number and its type, found {value!r:.80}") from error


def check_complete(num_partitions: Mapping[str, int], config: Mapping[str, Any] | None, where: str) -> None:
    """Check that every entity type of a relation has embeddings, in all partitions."""
    for name, wanted in declared_partitions(config).items():
        if num_partitions.get(name, 0) < wanted:
            raise FormatError(
                f"{where}: expected embeddings of {name!r} in {wanted} partitions, as the configuration "
                f"beside says, found {num_partitions.get(name, 0)}"
            )


def declared_partitions(config: Mapping[str, Any] | None, others: Iterable[str] = ()) -> dict[str, int]:
    """Partitions of each type of a relation, and of `others`, as far as a checkpoint's configuration says."""
    entities, relations = ((config or {}).get(key, ()) for key in ("entities", "relations"))
    names = {*others, *(relation[side] for relation in relations for side in Side)}
    return {name: entities[name].get("num_partitions", 1) for name in sorted(names) if name in entities}
