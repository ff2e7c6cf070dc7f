"""HTTP server of a command's metrics."""

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from graphmill.cluster import Losses
from graphmill.config.sections.cluster import ClusterConfig
from graphmill.display import progress
from graphmill.errors import ConfigError, optional
from graphmill.run.record import RunRecord

_ALL = "0.0.0.0"

log = logging.getLogger("graphmill")


@contextmanager
def served(
    options: ClusterConfig, record: RunRecord | None = None, losses: Losses | None = None
) -> Iterator[None]:
    """Serve metrics at `metrics_port` of the dashboard's host during the block; do nothing without a port."""
    if options.metrics_port is None:
        yield
        return
    missing = "cluster.metrics_port needs prometheus_client: pip install 'graphmill[metrics]'"
    start_http_server = optional("prometheus_client", missing).start_http_server
    from graphmill.monitoring.metrics import Metrics

    metrics = Metrics(record, losses)
    host = options.dashboard_address.rpartition(":")[0].strip("[]") or _ALL
    try:
        server, thread = start_http_server(options.metrics_port, host, metrics.registry())
    except OSError as error:
        raise ConfigError(
            f"cluster.metrics_port: {options.metrics_port}: {error.strerror or error}; choose another port, "
            "or 0 for any"
        ) from error
    name = socket.gethostname() if host == _ALL else f"[{host}]" if ":" in host else host
    log.info("metrics: http://%s:%d/metrics", name, server.server_port)
    try:
        with progress.shown_by(metrics):
            yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
