"""`--master tcp://HOST:PORT` or `tls://HOST:PORT`: a cluster that is already running."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import dask

from graphmill.cluster.keys import Keys
from graphmill.cluster.settings import ClusterConfig
from graphmill.errors import ConfigError

log = logging.getLogger("graphmill")


@contextmanager
def running_cluster(master: str, settings: ClusterConfig, keys: Keys | None) -> Iterator[str]:
    """Yield the address of the scheduler.

    Raises:
        ConfigError: the cluster uses TLS, and no setting names its certificates.
    """
    if keys is None and master.startswith("tcp://"):
        log.warning("cluster: %s is not encrypted: whoever reaches its ports can run code there", master)
    elif keys is None and not dask.config.get("distributed.comm.tls.ca-file"):
        raise ConfigError(
            f"--master {master}: set cluster.tls to the ca_file, cert_file and key_file of that cluster"
        )
    yield master
