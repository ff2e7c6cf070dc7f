"""Trains on a cluster of its own: `python -m tests.train.distributed.driver CONFIG NUM_WORKERS`."""

import sys

from distributed import Client, LocalCluster

from graphmill import config as configuration
from train import job


def main() -> None:
    with (
        LocalCluster(n_workers=int(sys.argv[2]), threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        job.run(configuration.load(sys.argv[1]), client)


if __name__ == "__main__":
    main()
