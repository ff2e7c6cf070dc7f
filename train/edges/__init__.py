"""Edges in training: batches, queries of 1-vs-all and their candidates, negative sampling, the order of
buckets, blocks of partitions, the schedule of epochs and chunks.
"""
