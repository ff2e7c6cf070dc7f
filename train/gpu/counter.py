"""Random numbers without state: a key and a counter give a number.

Any number of threads can repeat any step, and a shuffled epoch takes no memory: `permute` maps a position of
the epoch to an edge. The kernels compute the same numbers.

    mix         murmur3's 32-bit finalizer over (key, counter)
    permute     a Feistel network over the smallest 2^b >= n, applied again while its result is not below n
    draw        (mix x n) >> 32: uniform over [0, n) but for a share of n / 2^32

Numbers are 32 bits wide, held in int64. Source: Black and Rogaway, Ciphers with arbitrary finite domains
(CT-RSA 2002), for the walk.
"""

import torch
from torch import Tensor

ROUNDS = 4
_MASK = 0xFFFFFFFF


def mix(key: Tensor | int, counter: Tensor) -> Tensor:
    """Draw 32 random bits for each counter, int64 in and out."""
    bits = (counter * 0x9E3779B1 + key) & _MASK
    bits = ((bits ^ (bits >> 16)) * 0x85EBCA6B) & _MASK
    bits = ((bits ^ (bits >> 13)) * 0xC2B2AE35) & _MASK
    bits = bits ^ (bits >> 16)
    # A second pass: keys that differ in one bit must not correlate.
    bits = ((bits + key) * 0x85EBCA6B) & _MASK
    bits = ((bits ^ (bits >> 15)) * 0xC2B2AE35) & _MASK
    return bits ^ (bits >> 16)


def half_bits(num_items: int) -> int:
    """Bits of each half of the network that permutes `num_items`."""
    return max(1, ((num_items - 1).bit_length() + 1) // 2)


def permute(key: Tensor | int, position: Tensor, num_items: int) -> Tensor:
    """Find the item at each position of a random order of `num_items`: int64 in and out."""
    bits = half_bits(num_items)
    item = _network(key, position, bits)
    while bool((outside := item >= num_items).any()):
        item = torch.where(outside, _network(key, item, bits), item)
    return item


def draw(key: Tensor | int, counter: Tensor, num_items: int) -> Tensor:
    """Draw an item of [0, num_items) for each counter, num_items < 2^31."""
    return (mix(key, counter) * num_items) >> 32


def _network(key: Tensor | int, value: Tensor, bits: int) -> Tensor:
    mask = (1 << bits) - 1
    left, right = value >> bits, value & mask
    for number in range(ROUNDS):
        left, right = right, left ^ (mix(key, right + (number << 26)) & mask)
    return (left << bits) | right
