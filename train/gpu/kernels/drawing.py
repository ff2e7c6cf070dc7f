"""Kernels that draw: the edges of a step, in random order, and their candidates."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from train.gpu import counter
from train.gpu.reference import KernelEdges, KernelSample

# Arguments that need no compilation of their own: the last chunks of groups have any size.
_SIZES = ["C", "P", "AGAIN", "DRAWN"]


@triton.jit
def _mixed(key, counter):
    """See counter.mix: uint32 in and out."""
    bits = counter * 0x9E3779B1 + key
    bits = (bits ^ (bits >> 16)) * 0x85EBCA6B
    bits = (bits ^ (bits >> 13)) * 0xC2B2AE35
    bits = bits ^ (bits >> 16)
    bits = (bits + key) * 0x85EBCA6B
    bits = (bits ^ (bits >> 15)) * 0xC2B2AE35
    return bits ^ (bits >> 16)


@triton.jit
def _network(key, value, bits, ROUNDS: tl.constexpr):
    mask = (1 << bits) - 1
    left = value >> bits
    right = value & mask
    for number in tl.static_range(ROUNDS):
        turned = _mixed(key, (right + (number << 26)).to(tl.uint32)).to(tl.int64)
        left, right = right, left ^ (turned & mask)
    return (left << bits) | right


@triton.jit(do_not_specialize=_SIZES)
def _sample(
    lhs, rel, rhs, weight, clock, out_lhs, out_rhs, out_rel, out_weight, C, P, AGAIN, DRAWN,
    ROUNDS: tl.constexpr, WEIGHTED: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    K = P + AGAIN + DRAWN
    key = tl.load(clock).to(tl.uint32)
    position = tl.load(clock + 1)
    first = tl.load(clock + 2)
    size = tl.load(clock + 3)
    bits = tl.load(clock + 4)
    num_lhs = tl.load(clock + 5)
    num_rhs = tl.load(clock + 6)
    place = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    there = place < C * K
    chunk = place // K
    k = place % K
    is_edge = there & (k < P + AGAIN)
    is_positive = there & (k < P)
    number = chunk * P + tl.where(k < P, k, k - P)
    edge = _network(key, tl.where(is_edge, position + number, 0), bits, ROUNDS)
    outside = is_edge & (edge >= size)
    while tl.max(outside.to(tl.int32), axis=0) > 0:
        edge = tl.where(outside, _network(key, edge, bits, ROUNDS), edge)
        outside = is_edge & (edge >= size)
    edge = tl.where(is_edge, edge, 0) + first
    draw = (chunk * DRAWN + (k - P - AGAIN)).to(tl.uint32)
    now = position.to(tl.uint32)
    lhs_drawn = (_mixed(_mixed(key ^ 1, now), draw).to(tl.int64) * num_lhs) >> 32
    rhs_drawn = (_mixed(_mixed(key ^ 2, now), draw).to(tl.int64) * num_rhs) >> 32
    lhs_row = tl.load(lhs + edge, mask=is_edge, other=0)
    rhs_row = tl.load(rhs + edge, mask=is_edge, other=0)
    tl.store(out_lhs + place, tl.where(is_edge, lhs_row, lhs_drawn.to(tl.int32)), mask=there)
    tl.store(out_rhs + place, tl.where(is_edge, rhs_row, rhs_drawn.to(tl.int32)), mask=there)
    tl.store(out_rel + number, tl.load(rel + edge, mask=is_positive, other=0), mask=is_positive)
    own = tl.full([BR], 1.0, tl.float32)
    if WEIGHTED:
        own = tl.load(weight + edge, mask=is_positive, other=0.0)
    tl.store(out_weight + number, own, mask=is_positive)


def sample(edges: KernelEdges, clock_F: Tensor, shape: tuple[int, int, int, int]) -> KernelSample:
    """See reference.sample."""
    chunks, positives, again, drawn = shape
    device = clock_F.device
    candidates = positives + again + drawn
    rows_SCK = torch.empty(2, chunks, candidates, dtype=torch.int32, device=device)
    rel_CP = torch.empty(chunks, positives, dtype=torch.int32, device=device)
    weight_CP = torch.empty(chunks, positives, device=device)
    _sample[triton.cdiv(chunks * candidates, 256),](
        edges.lhs, edges.rel, edges.rhs, edges.rel if edges.weight is None else edges.weight, clock_F,
        *rows_SCK, rel_CP, weight_CP, chunks, positives, again, drawn,
        counter.ROUNDS, edges.weight is not None, 256,
    )  # fmt: skip
    return KernelSample(rows_SCK, rel_CP, weight_CP)
