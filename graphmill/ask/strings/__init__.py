"""Lookup of raw ids by integer id, and search for duplicates, in compiled loops."""
