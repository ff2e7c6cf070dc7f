"""Training over several Dask workers.

coordinator           the client's part: hands buckets out, commits versions
bucket_assignment     the next bucket of a worker: PBG's lock server, or a tournament of rounds
worker_pool           the workers' tasks: starts them, notices lost workers
worker                the long task: trains a bucket, writes its partitions, publishes
messages              messages between the coordinator and the workers
partition_locations   the newest file of every partition
shared_state          state that all buckets change: relation parameters, types with one partition
collective            the all-reduce of a round's shared state; scheduler_store: its meeting point
"""
