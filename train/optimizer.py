"""Adagrad: row-wise for embeddings, element-wise for the other parameters.

    row-wise       sum[row] += mean over d of g[d]^2;   p[row] -= lr g / (sqrt(sum[row]) + 1e-10)
    element-wise   sum += g^2;                          p -= lr g / (sqrt(sum) + 1e-10)

The states are saved in the layouts of PBG's RowAdagrad and of torch.optim.Adagrad.
Source: docs/formats/pbg_v1.md.

Shapes: N rows of the table, K touched rows with repetitions, U without, D dimension.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from graphmill.errors import FormatError

EPSILON = 1e-10


def sum_duplicates(rows_K: Tensor, gradient_KD: Tensor) -> tuple[Tensor, Tensor]:
    """Rows without repetition, ascending, and the sum of each one's gradients: [U], [U, D].

    The order of summation is that of the arguments, so the result is the same every time.
    """
    sorted_K, order_K = torch.sort(rows_K, stable=True)
    rows_U, count_U = torch.unique_consecutive(sorted_K, return_counts=True)
    start_U = count_U.cumsum(0) - count_U
    # a bag is a segment of equal rows: one pass over the gradients, no COO tensor
    return rows_U, F.embedding_bag(order_K, gradient_KD, start_U, mode="sum")


def update_rows(
    embeddings_ND: Tensor,
    sum_N: Tensor,
    rows_U: Tensor,
    gradient_UD: Tensor,
    lr: float,
    max_norm: float | None = None,
) -> None:
    """One row-wise Adagrad step on distinct rows, in place; rows longer than `max_norm` are shortened."""
    sum_U = sum_N[rows_U] + gradient_UD.square().mean(1)
    sum_N[rows_U] = sum_U
    step_U = lr / (sum_U.sqrt_() + EPSILON)
    updated_UD = torch.addcmul(embeddings_ND[rows_U], gradient_UD, step_U.unsqueeze(1), value=-1)
    embeddings_ND[rows_U] = updated_UD if max_norm is None else shortened(updated_UD, max_norm)


def shortened(embeddings_ND: Tensor, max_norm: float) -> Tensor:
    """The embeddings, those longer than `max_norm` scaled down to it."""
    norm_N: Tensor = embeddings_ND.square().sum(1).sqrt()
    return embeddings_ND * (max_norm / norm_N.clamp_min(max_norm)).unsqueeze(1)


def is_beginning(first: Tensor, whole: Tensor) -> bool:
    """Whether `first` can be the first rows of `whole`."""
    same_rows = first.dim() > 0 and first.shape[1:] == whole.shape[1:]
    return same_rows and len(first) <= len(whole)


def row_state(sum_N: Tensor, lr: float) -> dict[str, Any]:
    """The state of one table, as PBG's RowAdagrad saves it."""
    group = {"lr": lr, "lr_decay": 0, "weight_decay": 0, "params": [0]}
    # PBG's release 1.0.0 counts steps, for lr_decay alone, and does not resume without the key.
    return {"state": {0: {"step": 0, "sum": sum_N}}, "param_groups": [group]}


def sum_of_row_state(state: Mapping[str, Any], count: int, uri: str) -> Tensor:
    """The accumulated squares [count] of a saved state.

    Raises:
        FormatError: they are missing or of another shape.
    """
    try:
        saved: Tensor = state["state"][0]["sum"]
        shape = tuple(saved.shape)
    except (KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{uri}: optimizer/state_dict: expected state[0]['sum'], found none") from error
    if shape != (count,):
        raise FormatError(f"{uri}: optimizer/state_dict: expected 'sum' of shape {(count,)}, found {shape}")
    return saved.to(torch.float32)


class Adagrad:
    """Element-wise Adagrad of named parameters, which it changes in place."""

    def __init__(self, parameters: dict[str, Tensor], lr: float) -> None:
        self.parameters = parameters
        self.lr = lr
        self.sums = {key: torch.zeros_like(value) for key, value in parameters.items()}
        self.steps = dict.fromkeys(parameters, 0)

    def update(self, key: str, gradient: Tensor, rows_U: Tensor | None = None) -> None:
        """One step on a whole parameter, or on distinct rows of it: the rest, without a gradient, stays."""
        self.steps[key] += 1
        if rows_U is None:
            accumulated = self.sums[key].addcmul_(gradient, gradient)
            self.parameters[key].addcdiv_(gradient, accumulated.sqrt() + EPSILON, value=-self.lr)
            return
        accumulated = self.sums[key][rows_U].addcmul_(gradient, gradient)
        self.sums[key][rows_U] = accumulated
        step = gradient / accumulated.sqrt_().add_(EPSILON)
        self.parameters[key][rows_U] -= self.lr * step

    def state_dict(self) -> dict[str, Any]:
        """The state as torch.optim.Adagrad saves it; empty where there is no parameter."""
        if not self.parameters:
            return {}
        state = {
            number: {"step": torch.tensor(float(self.steps[key])), "sum": self.sums[key]}
            for number, key in enumerate(self.parameters)
        }
        group = {
            "lr": self.lr,
            "lr_decay": 0,
            "eps": EPSILON,
            "weight_decay": 0,
            "initial_accumulator_value": 0,
            "foreach": None,
            "maximize": False,
            "differentiable": False,
            "fused": None,
            "params": list(range(len(self.parameters))),
        }
        return {"state": state, "param_groups": [group]}

    def load_state_dict(self, saved: Mapping[str, Any], uri: str, *, grown: bool = False) -> None:
        """Take over a saved state; with `grown` it may be one of the first rows of each parameter alone.

        Raises:
            FormatError: it is not that of these parameters.
        """
        states = saved.get("state", {})
        for number, key in enumerate(self.parameters):
            try:
                accumulated, steps = states[number]["sum"], float(states[number]["step"])
                shape = tuple(accumulated.shape)
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                raise FormatError(
                    f"{uri}: optimizer/state_dict: expected 'sum' and 'step' of parameter {number} ({key!r})"
                ) from error
            if shape != tuple(self.sums[key].shape) and not (
                grown and is_beginning(accumulated, self.sums[key])
            ):
                raise FormatError(
                    f"{uri}: optimizer/state_dict: 'sum' of parameter {number} ({key!r}) has shape {shape}; "
                    f"expected {tuple(self.sums[key].shape)}"
                )
            self.sums[key][: len(accumulated)].copy_(accumulated)
            self.steps[key] = int(steps)
