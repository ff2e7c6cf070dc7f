"""The Dask cluster of a command (`--master`: local, YARN, ssh, CUDA), TLS keys, a driver in a container
(`deploy`), and the functions that run tasks (`run_tasks`), retries and lost workers.
"""

from graphmill.cluster.connecting import connect
from graphmill.cluster.settings import ENVIRONMENT, num_cores
from graphmill.cluster.tasks import Losses, cleaning_up, listening, run_task, run_tasks, shown_by_worker
from graphmill.cluster.workers import described_workers, memory_of_workers, worker_addresses, workers_by_host
