"""Output tables: parquet or CSV, in the standard layout or a custom layout."""
