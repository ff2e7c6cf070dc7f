"""States of optimizers, which number a model's parameters in the order of `graphmill.model.parameters`."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from graphmill.checkpoints.finite import check_finite
from graphmill.errors import FormatError
from graphmill.vocab import Side

if TYPE_CHECKING:
    from torch import Tensor


def reordered(
    state: Mapping[str, Any] | None, before: Sequence[str], after: Sequence[str]
) -> dict[str, Any] | None:
    """Renumber an optimizer's state_dict() from the order `before` to the order `after`."""
    if state is None or not isinstance(state.get("state"), Mapping):
        return None if state is None else dict(state)
    numbers = {number: after.index(key) for number, key in enumerate(before)}
    states = {numbers.get(number, number): entry for number, entry in state["state"].items()}
    return dict(state) | {"state": dict(sorted(states.items()))}


def table_sums(state: Mapping[str, Any], shape: tuple[int, int], where: str) -> "Tensor | None":
    """The Adagrad sums of a table of `shape` (N, D): float32 [N] row-wise or [N, D]; None before a step."""
    import torch

    if not state.get("state"):
        return None
    try:
        sums = state["state"][0]["sum"]
        sums_shape = tuple(sums.shape)
    except (LookupError, TypeError, AttributeError) as error:
        raise FormatError(f"{where}: optimizer state: expected 'sum' of parameter 0, found none") from error
    if sums_shape not in (shape[:1], shape):
        raise FormatError(
            f"{where}: optimizer state: expected sums of shape {shape[:1]} or {shape}, found {sums_shape}"
        )
    converted: Tensor = sums.to(torch.float32)
    return converted


def sums_of(state: Mapping[str, Any] | None) -> dict[Any, Any]:
    """The Adagrad sums in an optimizer's state_dict(), by number of the parameter."""
    saved = (state or {}).get("state")
    entries = saved.items() if isinstance(saved, Mapping) else ()
    return {n: entry["sum"] for n, entry in entries if isinstance(entry, Mapping) and "sum" in entry}


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
            known = isinstance(number, int) and 0 <= number < len(parameters)
            key = parameters[number] if known else number
            of = "" if key is None else f" of parameter {key!r}"
            check_finite(sums.detach().cpu().float().numpy(), f"{where}: optimizer sums{of}")


def without_sums(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state_dict() as JSON types, without the tensors named `sum`."""
    plain = {
        str(number): {name: _plain(value, name) for name, value in entry.items() if name != "sum"}
        for number, entry in state.get("state", {}).items()
    }
    groups = [{name: _plain(value, name) for name, value in group.items()} for group in state["param_groups"]]
    return {"state": plain, "param_groups": groups}


def with_sums(plain: Mapping[str, Any], sums: Mapping[int, "Tensor"]) -> dict[str, Any]:
    """The inverse of `without_sums`: a state_dict() with the sums, by number of the parameter.

    Equal names are one string, as in a state_dict() of torch: so torch.save writes the same bytes.
    """
    restored = {
        int(number): {sys.intern(name): _restored(value) for name, value in of_parameter.items()}
        for number, of_parameter in plain["state"].items()
    }
    for number, value in sums.items():
        restored.setdefault(number, {})["sum"] = value
    groups = [{sys.intern(name): value for name, value in group.items()} for group in plain["param_groups"]]
    return {"state": restored, "param_groups": groups}


def _plain(value: Any, name: str) -> Any:
    import torch

    if isinstance(value, torch.Tensor) and value.dim() == 0:
        return {"tensor": str(value.dtype).removeprefix("torch."), "value": value.item()}
    if value is None or isinstance(value, bool | int | float | str | list):
        return value
    raise FormatError(f"optimizer state {name!r}: expected a number, found {type(value).__name__}")


def _restored(value: Any) -> Any:
    import torch

    if isinstance(value, dict):
        return torch.tensor(value["value"], dtype=getattr(torch, value["tensor"]))
    return value


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
    declared, relations = ((config or {}).get(key) for key in ("entities", "relations"))
    if not isinstance(declared, Mapping):
        return {}
    listed = relations if isinstance(relations, list | tuple) else []
    sides = [relation.get(side) for relation in listed if isinstance(relation, Mapping) for side in Side]
    names = {name for name in (*sides, *others) if isinstance(name, str)} & declared.keys()
    entities = {name: declared[name] for name in sorted(names)}
    counts = {
        name: entity.get("num_partitions", 1) if isinstance(entity, Mapping) else 1
        for name, entity in entities.items()
    }
    return {name: count for name, count in counts.items() if type(count) is int}
