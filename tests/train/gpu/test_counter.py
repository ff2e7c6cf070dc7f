"""Numbers from counters: orders are permutations, draws are uniform."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from train.gpu.reference import draw, mix, permute


@given(num_items=st.integers(1, 3000), key=st.integers(0, 2**32 - 1))
def test_every_item_comes_once(num_items: int, key: int) -> None:
    order = permute(key, torch.arange(num_items), num_items)
    assert torch.equal(order.sort().values, torch.arange(num_items))


def test_orders_differ_by_key_and_from_the_identity() -> None:
    places = torch.arange(10_000)
    first, second = (permute(key, places, 10_000) for key in (1, 2))
    for one, other in ((first, second), (first, places)):
        assert (one == other).sum() < 10
    # neighbours do not stay neighbours
    assert ((first[1:] - first[:-1]).abs() < 100).sum() < 400


@pytest.mark.parametrize("num_items", [1, 7, 14_541, 2**31 - 1])
def test_draws_are_uniform(num_items: int) -> None:
    draws = draw(99, torch.arange(200_000), num_items)
    assert draws.min() >= 0
    assert draws.max() < num_items
    buckets = torch.bincount(draws * min(num_items, 20) // num_items).double()
    expected = 200_000 / min(num_items, 20)
    assert (buckets - expected).abs().max() < 5 * expected**0.5


def test_sides_and_steps_draw_other_numbers() -> None:
    keys = [mix(5 ^ side, torch.tensor(position)) for side in (1, 2) for position in (0, 64)]
    draws = [draw(key, torch.arange(1000), 2**30) for key in keys]
    for number, one in enumerate(draws):
        for other in draws[number + 1 :]:
            assert (one == other).sum() == 0
