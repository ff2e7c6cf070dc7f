"""Metrics of a running command for Prometheus: `--metrics-port`.

    graphmill_run_info{output, version}              1
    graphmill_stage_status{stage, status}            1 for the status of each stage in run.json
    graphmill_stage_figure{stage, figure}            numbers of the stages in run.json: seconds, num_rows...
    graphmill_work_done, _total, _per_second{work, unit}      each progress bar
    graphmill_work_figure{work, figure}              its numbers: of training loss, mrr, wait_share
    graphmill_workers, graphmill_workers_lost_total, graphmill_worker_memory_bytes{worker}
    process_...                                      memory, CPU and files of this process

Values are read when Prometheus asks. Needs prometheus_client, with which Dask's scheduler and workers serve
metrics of their own.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from distributed.client import default_client
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from graphmill import __version__
from graphmill.cluster import Losses, described_workers
from graphmill.display.progress import Clock, Tick
from graphmill.run.record import RunRecord
from graphmill.storage.redaction import redacted


class Metrics(Collector):
    """The metrics of a command; a `progress.Display`.

    Args:
        record: run.json of the command, if it has one.
        losses: the workers that it has lost.
    """

    def __init__(self, record: RunRecord | None, losses: Losses | None) -> None:
        self.record, self.losses = record, losses
        self._clock = Clock()
        self._work: dict[str, tuple[Tick, float]] = {}

    def registry(self) -> CollectorRegistry:
        """Return a registry with these metrics and those of the process."""
        registry = CollectorRegistry()
        registry.register(self)
        ProcessCollector(registry=registry)
        return registry

    def show(self, tick: Tick) -> None:
        """Keep the newest progress."""
        self._work[tick.description] = tick, self._clock.rate(tick)

    def describe(self) -> list[Metric]:
        """Return no names: without this method, prometheus_client would collect everything at the start."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the present values."""
        if self.record is not None:
            output = redacted(self.record.uri.rpartition("/")[0])
            yield InfoMetricFamily("graphmill_run", "The run.", {"output": output, "version": __version__})
            yield from _stages(dict(self.record.content["stages"]))
        yield from self._progress()
        if self.losses is not None:
            help_text = "Workers that died or were lost."
            yield CounterMetricFamily("graphmill_workers_lost", help_text, self.losses.num_workers)
        with suppress(ValueError, OSError):  # there is no cluster, or it does not answer
            yield from _workers(described_workers(default_client()))

    def _progress(self) -> Iterator[Metric]:
        of_work = ("work", "unit")
        done = GaugeMetricFamily("graphmill_work_done", "Units that are done.", labels=of_work)
        total = GaugeMetricFamily("graphmill_work_total", "Units of the whole work.", labels=of_work)
        rate = GaugeMetricFamily("graphmill_work_per_second", "Mean rate so far.", labels=of_work)
        figures = GaugeMetricFamily(
            "graphmill_work_figure", "Numbers of the work.", labels=("work", "figure")
        )
        for tick, per_second in list(self._work.values()):
            for family, value in ((done, tick.done), (total, tick.total), (rate, per_second)):
                family.add_metric((tick.description, tick.unit), value)
            for name, field in tick.fields.items():
                if not isinstance(field, str):
                    figures.add_metric((tick.description, name), field)
        yield from (done, total, rate, figures)


def _stages(entries: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    status = GaugeMetricFamily("graphmill_stage_status", "1: its status.", labels=("stage", "status"))
    figures = GaugeMetricFamily("graphmill_stage_figure", "Numbers in run.json.", labels=("stage", "figure"))
    for stage, entry in entries.items():
        status.add_metric((stage, str(entry.get("status", "unknown"))), 1)
        for name, value in entry.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                figures.add_metric((stage, name), value)
    yield from (status, figures)


def _workers(described: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    yield GaugeMetricFamily("graphmill_workers", "Workers that are there.", len(described))
    memory = GaugeMetricFamily("graphmill_worker_memory_bytes", "Resident memory.", labels=("worker",))
    for address, worker in described.items():
        memory.add_metric((address,), worker.get("metrics", {}).get("memory", 0))
    yield memory
