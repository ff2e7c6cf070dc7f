"""Training over several Dask workers: the lock server that assigns buckets, partitions from worker to
worker, shared parameters in shards.
"""
