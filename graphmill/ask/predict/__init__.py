"""Answers by raw id: the best candidates for each id along a relation, and scores of given pairs."""
