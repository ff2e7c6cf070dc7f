"""Tests of graphmill/ask/predict."""
