"""A finished run as an object for notebooks and scripts; the nearest of many vectors."""

from graphmill.library.run import Run

__all__ = ["Run"]
