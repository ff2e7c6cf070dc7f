"""The former name of `train.edges.one_vs_all`."""

from train.edges.one_vs_all import QueryBatch as Questions
from train.edges.one_vs_all import sides_with_negatives as asked_sides

__all__ = ["Questions", "asked_sides"]
