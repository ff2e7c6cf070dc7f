"""log(1 + exp(gap)) and its slope, by loops of softplus.cpp where many queries are summed.

Without the compiled loops torch does the same in a dozen passes. Shapes: B ids, Q queries.
"""

from ctypes import c_float, c_int64, c_void_p
from pathlib import Path

import torch
from torch import Tensor

from graphmill.machine import native

SOURCE = Path(__file__).with_name("softplus.cpp")

_LARGEST_GAP = 80.0  # whose exp is a float32
library = native.loader(
    SOURCE,
    {"softplus": (None, [*[c_void_p] * 3, c_float, *[c_int64] * 2, c_void_p])},
    name="fold-in",
    instead="torch computes the losses",
)


def softplus(gap: Tensor) -> tuple[Tensor, Tensor]:
    """Compute log(1 + exp(gap)) and its slope, faster than by torch's log1p; overwrites the gaps."""
    exp = gap.clamp_max_(_LARGEST_GAP).exp_()
    total = exp + 1
    lost = (total - 1).sub_(exp).div_(total)  # what the rounding of the total has added
    return torch.log(total).sub_(lost), exp.div_(total)


def weighted_softplus(
    score_BQ: Tensor, offset_Q: Tensor, weight_Q: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Sum weight x log(1 + exp((score - offset) / temperature)) of each id [B]; and its slopes [B, Q].

    Overwrites the scores, which are contiguous.
    """
    compiled = library()
    if compiled is None:
        loss_BQ, slope_BQ = softplus(score_BQ.sub_(offset_Q).div_(temperature))
        return loss_BQ @ weight_Q, slope_BQ.mul_(weight_Q)
    loss_B = score_BQ.new_empty(len(score_BQ))
    tensors = (score_BQ, offset_Q, weight_Q)
    pointers = [tensor.data_ptr() for tensor in tensors]
    compiled.graphmill_softplus(*pointers, 1 / temperature, *score_BQ.shape, loss_B.data_ptr())
    return loss_B, score_BQ
