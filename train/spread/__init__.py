"""Training over several Dask workers.

assignment    which bucket may be trained next: PBG's lock server, or a tournament of rounds
messages      what the coordinator and the workers tell each other
places        where the newest files of every partition are
coordinator   the client's part: hands buckets out, commits
crew          the workers' tasks: who was lost, who has come
worker        the long task: train a bucket, write what it changed, publish
shared        what all buckets change: relation parameters, types with one partition
collective    the all-reduce that brings it together where the workers' rounds have one
"""
