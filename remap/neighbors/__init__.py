"""Nearest neighbours of an id, so that a person can judge the vectors."""
