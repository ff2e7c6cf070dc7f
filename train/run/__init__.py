"""A run of training: what it goes on from, its steps, buckets, validation, metrics."""
