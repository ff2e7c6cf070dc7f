"""Training over several Dask workers.

coordinator           the client's part: hands buckets out, commits versions
bucket_assignment     the next bucket of a worker: PBG's lock server, or a tournament of rounds
worker_pool           the workers' tasks: starts them, notices lost workers
worker                the long task: trains a bucket, leaves its partitions in memory, publishes
messages              messages between the coordinator and the workers
partition_locations   the copies of every partition, in memory and in files
shared_state          state that all buckets change: relation parameters, types with one partition
shared_rows           a worker's copy of it; shards: the shards that hold it; shard_placement: where they are
partition_holder      partitions in a worker's memory, which other workers fetch: a Dask actor
partition_exchange    a worker's partitions: fetched, read ahead, written behind; actor_calls: the calls
"""
