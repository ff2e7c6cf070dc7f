"""The Dask cluster of a command, and the functions that run tasks on the cluster.

connecting   connect(...): a client of the cluster
local, yarn, ssh: starts of a cluster, by its kind
settings     environment of workers
resources    memory of workers: the least that they need, and what YARN is asked for
keys         TLS keys of one run, or from files
workers      checks and preparation of workers: the package, versions, environment
tasks        run_tasks, run_task, workers that were lost during a run
yarn         containers of Hadoop's distributed shell: application, container, hadoop
"""

from graphmill.cluster.connecting import connect
from graphmill.cluster.settings import ENVIRONMENT, num_cores
from graphmill.cluster.tasks import Losses, cleaning_up, listening, run_task, run_tasks, shown_by_worker
from graphmill.cluster.workers import described_workers, memory_of_workers, worker_addresses

__all__ = [
    "ENVIRONMENT",
    "Losses",
    "cleaning_up",
    "connect",
    "described_workers",
    "listening",
    "memory_of_workers",
    "num_cores",
    "run_task",
    "run_tasks",
    "shown_by_worker",
    "worker_addresses",
]
