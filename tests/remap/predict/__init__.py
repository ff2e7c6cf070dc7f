"""Tests of remap/predict."""
