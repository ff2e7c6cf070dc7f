"""The suite; laid out as the code is, `whole` for what takes all of it."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
