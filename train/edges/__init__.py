"""Edges in training: the order of buckets, batches, negatives, the schedule, seeds."""
