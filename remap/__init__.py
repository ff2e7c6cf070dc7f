"""Checkpoints -> embeddings keyed by raw id, in tables of the standard layout or another (`tables`), and with
the vectors of an earlier run (`align`).
"""
