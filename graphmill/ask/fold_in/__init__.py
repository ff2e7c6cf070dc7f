"""Vectors for ids that a trained run has never seen, from their few edges."""
