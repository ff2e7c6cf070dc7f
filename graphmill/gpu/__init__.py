"""Scores on a GPU for evaluate and predict: how many candidates score higher, and which score highest;
no score is kept.
"""
