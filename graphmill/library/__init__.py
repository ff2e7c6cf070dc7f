"""A finished run as an object for notebooks and scripts; the search for nearest vectors."""

from graphmill.library.run import Run

__all__ = ["Run"]
