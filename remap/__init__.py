"""Checkpoints -> embeddings keyed by raw id."""
