"""Adagrad: row-wise or element-wise for embeddings, element-wise for the other parameters.

    row-wise       sum[row] += mean over d of g[d]^2;   p[row] -= lr g / (sqrt(sum[row]) + 1e-10)
    element-wise   sum += g^2;                          p -= lr g / (sqrt(sum) + 1e-10)

The sums of a table are [N] with row-wise Adagrad and [N, D] with element-wise Adagrad.

The states are saved in the layouts of PBG's RowAdagrad and of torch.optim.Adagrad.
Source: docs/formats/pbg_v1.md.

Shapes: N rows of the table, K touched rows with repetitions, U without, D dimension.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim.adagrad import adagrad

from graphmill.ask.model import is_beginning
from graphmill.checkpoints import states
from graphmill.checkpoints.finite import check_finite
from graphmill.errors import FormatError

EPSILON = 1e-10
Kind = Literal["row_adagrad", "adagrad"]
Rate = float | Tensor  # a number on the device can change after a step is captured


def sum_duplicates(rows_K: Tensor, gradient_KD: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows without repetition, ascending, and the sum of each row's gradients: [U], [U, D].

    The order of the arguments is the order of summation, so the result is the same every time.
    """
    sorted_K, order_K = torch.sort(rows_K, stable=True)
    rows_U, count_U = torch.unique_consecutive(sorted_K, return_counts=True)
    start_U = count_U.cumsum(0) - count_U
    # embedding_bag sums segments of equal rows in one pass over the gradients
    return rows_U, F.embedding_bag(order_K, gradient_KD, start_U, mode="sum")


def add_rows(target_N: Tensor, rows_K: Tensor, values_K: Tensor) -> Tensor:
    """Add values, or vectors, to rows in place; rows may repeat, and the result is the same every time."""
    if target_N.device.type == "cuda":  # where index_add_ adds in no fixed order
        return target_N.index_put_((rows_K,), values_K, accumulate=True)
    return target_N.index_add_(0, rows_K, values_K)


def sum_at_duplicates(rows_K: Tensor, gradient_KD: Tensor) -> Tensor:
    """Return, at each place of a row, the sum of all its gradients: [K, D]; without waiting for a device."""
    first_K = torch.searchsorted(torch.sort(rows_K).values, rows_K)
    return add_rows(torch.zeros_like(gradient_KD), first_K, gradient_KD).index_select(0, first_K)


def update_rows(
    embeddings_ND: Tensor,
    sums: Tensor,
    rows_U: Tensor,
    gradient_UD: Tensor,
    lr: Rate,
    max_norm: float | None = None,
) -> None:
    """Take one Adagrad step on distinct rows, in place; shorten rows longer than `max_norm`.

    A row may repeat if it has the same gradient everywhere.
    """
    old_UD = embeddings_ND.index_select(0, rows_U)  # several times as fast as an index in brackets
    if sums.dim() == 1:
        sum_U = sums[rows_U] + gradient_UD.square().mean(1)
        sums[rows_U] = sum_U
        step_U = lr / (sum_U.sqrt_() + EPSILON)
        updated_UD = torch.addcmul(old_UD, gradient_UD, step_U.unsqueeze(1), value=-1)
    else:
        sum_UD = sums.index_select(0, rows_U).addcmul_(gradient_UD, gradient_UD)
        sums[rows_U] = sum_UD
        updated_UD = _descend(old_UD, gradient_UD, sum_UD, lr)
    embeddings_ND[rows_U] = updated_UD if max_norm is None else shortened(updated_UD, max_norm)


def update_table(
    embeddings_ND: Tensor, sums: Tensor, gradient_ND: Tensor, lr: Rate, max_norm: float | None = None
) -> None:
    """Take one Adagrad step on every row, in place, like `update_rows`."""
    if sums.dim() == 1:
        sums += gradient_ND.square().mean(1)
        embeddings_ND.addcmul_(gradient_ND, (lr / (sums.sqrt() + EPSILON)).unsqueeze(1), value=-1)
    elif embeddings_ND.device.type == "cpu" and not isinstance(lr, Tensor):
        adagrad(
            [embeddings_ND],
            [gradient_ND],
            [sums],
            [torch.ones(())],
            fused=True,  # one pass over memory instead of four
            lr=lr,
            weight_decay=0.0,
            lr_decay=0.0,
            eps=EPSILON,
            maximize=False,
        )
    else:
        _descend(embeddings_ND, gradient_ND, sums.addcmul_(gradient_ND, gradient_ND), lr)
    if max_norm is not None:
        embeddings_ND.copy_(shortened(embeddings_ND, max_norm))


def _descend(values: Tensor, gradient: Tensor, sums: Tensor, lr: Rate) -> Tensor:
    """Move values by element-wise Adagrad, in place."""
    root = sums.sqrt().add_(EPSILON)
    if isinstance(lr, Tensor):
        return values.addcdiv_(gradient * lr, root, value=-1)
    return values.addcdiv_(gradient, root, value=-lr)


def shortened(embeddings_ND: Tensor, max_norm: float) -> Tensor:
    """Scale embeddings longer than `max_norm` down to `max_norm`."""
    norm_N: Tensor = embeddings_ND.square().sum(1).sqrt()
    return embeddings_ND * (max_norm / norm_N.clamp_min(max_norm)).unsqueeze(1)


def fresh_sums(optimizer: Kind, embeddings_ND: Tensor) -> Tensor:
    """Make the sums of a new table: zeros."""
    like = embeddings_ND if optimizer == "adagrad" else embeddings_ND[:, 0]
    return torch.zeros(like.shape)


def table_state(sums: Tensor, lr: float) -> dict[str, Any]:
    """Return the state of one table in the layout of PBG's RowAdagrad or torch.optim.Adagrad."""
    if sums.dim() == 2:
        return {"state": {0: {"step": torch.tensor(0.0), "sum": sums}}, "param_groups": [_group(lr, 1)]}
    group = {"lr": lr, "lr_decay": 0, "weight_decay": 0, "params": [0]}
    # PBG's release 1.0.0 counts steps, for lr_decay alone, and does not resume without the key.
    return {"state": {0: {"step": 0, "sum": sums}}, "param_groups": [group]}


def sums_of_table_state(
    state: Mapping[str, Any], optimizer: Kind, shape: tuple[int, int], uri: str
) -> Tensor:
    """Read the sums of a saved state, for a table of `shape`: [N], or element-wise [N, D].

    Sums of the other optimizer are converted: a row's sum is the mean of its elements' sums.
    """
    saved = states.table_sums(state, shape, uri)
    if saved is None:
        raise FormatError(f"{uri}: optimizer state: expected the sums of the table, found none")
    if optimizer == "adagrad":
        return saved if saved.dim() == 2 else saved.unsqueeze(1).expand(shape).contiguous()
    return saved if saved.dim() == 1 else saved.mean(1)


def _group(lr: float, num_parameters: int) -> dict[str, Any]:
    return {
        "lr": lr,
        "lr_decay": 0,
        "eps": EPSILON,
        "weight_decay": 0,
        "initial_accumulator_value": 0,
        "foreach": None,
        "maximize": False,
        "differentiable": False,
        "fused": None,
        "params": list(range(num_parameters)),
    }


class Adagrad:
    """Element-wise Adagrad of named parameters, in place; those of `frozen` do not move."""

    def __init__(
        self, parameters: dict[str, Tensor], lr: float, frozen: frozenset[str] = frozenset()
    ) -> None:
        self.parameters = parameters
        self.lr = lr
        self.frozen = frozen
        self.sums = {key: torch.zeros_like(value) for key, value in parameters.items()}
        self.steps = dict.fromkeys(parameters, 0)

    def update(self, leaves: Mapping[str, Tensor], rows_U: Tensor | None, lr_scale: float) -> None:
        """Take one step by the gradients of `leaves`: copies of whole parameters, or of distinct rows."""
        self.count(self.move(leaves, rows_U, lr_scale))

    def count(self, keys: Iterable[str]) -> None:
        """Count a step of these parameters."""
        for key in keys:
            self.steps[key] += 1

    def move(self, leaves: Mapping[str, Tensor], rows_U: Tensor | None, lr_scale: Rate) -> list[str]:
        """Do the part of `update` that a captured graph repeats; return the keys that have moved."""
        lr, moved = self.lr * lr_scale, []
        for key, leaf in leaves.items():
            if (gradient := leaf.grad) is None or key in self.frozen:
                continue
            moved.append(key)
            if rows_U is None:
                _descend(self.parameters[key], gradient, self.sums[key].addcmul_(gradient, gradient), lr)
            else:
                accumulated = self.sums[key][rows_U].addcmul_(gradient, gradient)
                self.sums[key][rows_U] = accumulated
                step = gradient / accumulated.sqrt_().add_(EPSILON)
                self.parameters[key][rows_U] -= lr * step
        return moved

    def state_dict(self) -> dict[str, Any]:
        """Return the state in the layout of torch.optim.Adagrad; empty without parameters."""
        if not self.parameters:
            return {}
        state = {
            number: {"step": torch.tensor(float(self.steps[key])), "sum": self.sums[key]}
            for number, key in enumerate(self.parameters)
        }
        return {"state": state, "param_groups": [_group(self.lr, len(self.parameters))]}

    def load_state_dict(
        self, saved: Mapping[str, Any], keys: Iterable[str | None], uri: str, *, grown: bool = False
    ) -> None:
        """Load a saved state; another one is a FormatError. With `grown`, it may cover first rows alone.

        `keys` are those of the parameters in the order in which they were saved; None: not loaded.
        """
        by_number = saved.get("state", {})
        for key, state in ((key, by_number.get(number)) for number, key in enumerate(keys) if key):
            try:
                accumulated, steps = state["sum"], int(float(state["step"]))
                shape = tuple(accumulated.shape)
            except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
                raise FormatError(
                    f"{uri}: optimizer/state_dict: expected 'sum' and 'step' of parameter {key!r}"
                ) from error
            if shape != tuple(self.sums[key].shape) and not (
                grown and is_beginning(accumulated, self.sums[key])
            ):
                raise FormatError(
                    f"{uri}: optimizer/state_dict: 'sum' of parameter {key!r} has shape {shape}; "
                    f"expected {tuple(self.sums[key].shape)}"
                )
            of_sums = f"{uri}: optimizer sums of parameter {key!r}"
            check_finite(accumulated.detach().cpu().float().numpy(), of_sums)
            self.sums[key][: len(accumulated)].copy_(accumulated)
            self.steps[key] = steps
