"""The Dask cluster a command works on, and the one way to run something on it.

settings     the section `cluster`
connecting   connect(...): a client of the cluster that --master names
yarn         --master yarn: workers in containers of Hadoop's distributed shell
hadoop       the commands of YARN's client
ssh          --master ssh://h1,h2
keys         who has them is let in: a run's own, or files
workers      what is made sure on every worker: the package, versions, environment
tasks        run_tasks, run_task
losses       workers that went away meanwhile, told and counted
"""

from graphmill.cluster.connecting import connect
from graphmill.cluster.losses import Losses
from graphmill.cluster.settings import ClusterConfig, TlsConfig, num_cores
from graphmill.cluster.tasks import run_task, run_tasks
from graphmill.machine.forkserver import ENVIRONMENT

__all__ = [
    "ENVIRONMENT",
    "ClusterConfig",
    "Losses",
    "TlsConfig",
    "connect",
    "num_cores",
    "run_task",
    "run_tasks",
]
