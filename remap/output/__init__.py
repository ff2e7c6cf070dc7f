"""Output tables: parquet or CSV, in the standard layout or a custom layout; alignment with the vectors
of an earlier run.
"""
