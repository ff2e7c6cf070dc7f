"""The former name of `train.tables.run_context`."""

from train.tables.run_context import RunContext as Start

__all__ = ["Start"]
