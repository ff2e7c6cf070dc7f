"""Strings by number: hashes of raw ids, and tables that keep one of equal ids."""
