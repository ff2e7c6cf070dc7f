"""The suite; laid out as the code is, `whole` for what takes all of it."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
DATA = Path(__file__).with_name("data")  # files that other systems have written: data/README.md
