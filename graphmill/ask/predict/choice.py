"""The choice between exact and approximate answers, by the multiplications that each needs.

    exact           queries x candidates
    lists           candidates x lists to sort them, k-means, and the exact answers of a sample
    approximate     queries x (lists + candidates of the lists that are looked into)

times the length of the vectors. Products with single lists are smaller, and take longer for each number.
"""

from dataclasses import dataclass

from graphmill.ask.predict.make_lists import ROUNDS, ROWS_PER_LIST
from graphmill.ask.predict.tuning import SAMPLE

SMALL_PRODUCTS = 2.0
"""Time of a multiplication in a product with a list, in those of a large product."""
GUESSED_SHARE = 1 / 16
"""Share of the lists that are looked into, before it is known."""


@dataclass(frozen=True)
class Cost:
    """Multiplications, divided by the length of the vectors, of both ways."""

    num_queries: int
    num_candidates: int
    num_lists: int

    @property
    def exact(self) -> float:
        """Cost of comparing all candidates."""
        return float(self.num_queries) * self.num_candidates

    @property
    def making(self) -> float:
        """Cost of making lists, and of tuning."""
        sample = ROWS_PER_LIST * self.num_lists
        return float(self.num_lists) * (self.num_candidates + ROUNDS * sample) + SAMPLE * self.num_candidates

    def approximate(self, share: float = GUESSED_SHARE) -> float:
        """Cost of answering with finished lists, where this share of the lists is looked into."""
        return self.num_queries * (self.num_lists + SMALL_PRODUCTS * share * self.num_candidates)

    @property
    def is_approximate_cheaper(self) -> bool:
        """Whether lists are worth making."""
        return self.making + self.approximate() < self.exact
