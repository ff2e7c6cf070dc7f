"""Nearest neighbours of an id, for a look at the quality of the vectors."""
