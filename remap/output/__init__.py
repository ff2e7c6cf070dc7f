"""Output tables: parquet or CSV, in the standard shape or another."""
