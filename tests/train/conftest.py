"""Fixtures of the trainer's tests."""

from tests.etl.conftest import near_client

__all__ = ["near_client"]
