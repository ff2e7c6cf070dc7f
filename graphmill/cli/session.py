"""A run of stages: its plan (`graphmill check`, --dry-run), its locks, run.json, cluster and report."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from distributed import Client

from etl.tables.files import table_roots
from graphmill import cluster, config, storage
from graphmill.cli.stages import are_small_stages
from graphmill.cluster.resources import asked_of_yarn, check_memory
from graphmill.config import Config
from graphmill.display import progress, terminal
from graphmill.errors import ConfigError, GraphMillError, LockedError, NoClusterError
from graphmill.monitoring import lineage
from graphmill.monitoring import server as metrics
from graphmill.run import lock, record
from graphmill.run.auto_values import resolve_auto_values, with_sizes
from graphmill.run.job import GraphSize, Stage
from graphmill.run.output_checks import check_outputs, check_storage, check_writable
from graphmill.run.reading import summary, verdict
from graphmill.run.record import recorded_stage
from graphmill.vocab import RECORD, TRAIN_SPLIT

log = logging.getLogger("graphmill")


@dataclass(frozen=True)
class Session:
    """Runs stages; holds the locks, run.json and the cluster."""

    settings: Config
    client: Client
    record: record.RunRecord

    def __call__(self, stage: Stage, *, resume: bool) -> dict[str, Any]:
        """Run a stage, unless `resume` finds it finished; return its entry in run.json."""
        settings = resolve_auto_values(self.settings)
        self.record.use(settings)
        return record.run_stage(stage.name, stage.job, settings, self.client, self.record, resume=resume)

    def report(self) -> None:
        """Write report.html: the last thing that a command does, when users have its result."""
        write_report(self.record.uri, self.settings)


@contextmanager
def session(
    settings: Config,
    master: str | None,
    stages: Sequence[Stage],
    *,
    kept: record.Kept = "nothing",
    is_chosen: bool = True,
    is_long: bool = False,
) -> Iterator[Session]:
    """Lock the folders that `stages` write, open run.json, start a cluster and show progress.

    `kept`: see `kept_of`; `is_chosen`: see `check_outputs`. A run that `is_long` takes worker processes,
    however little the stages read.
    """
    options = settings.cluster
    is_small = not is_long and are_small_stages(settings, stages)
    check_memory(master, options, [stage.name for stage in stages], is_small=is_small)
    check_outputs(settings, stages, table_roots(settings), is_chosen=is_chosen)
    written = [uri for stage in stages for uri in stage.job.written_uris(settings)]
    outputs = [settings.output] if settings.output else []
    if not outputs:  # run.json is in the checkpoint, which a stage may move aside
        written.append(settings.checkpoint_path)
    losses = cluster.Losses()
    uri = settings.record_uri(settings.checkpoint_path)
    with (
        lock.held(*outputs, whole=written) as claim,
        lineage.emitting_lineage(settings, stages, uri) as observer,
    ):
        run = record.RunRecord(uri, settings, claim, kept=kept, observer=observer)
        try:
            with (
                progress.displayed(),
                metrics.served(options, run, losses),
                cluster.connect(master, options, [stages[0].job.__name__], is_small=is_small) as client,
                losses.counted(client),
            ):
                yield Session(settings, client, run)
                run.finish("done", workers_lost=losses.num_workers)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and any(stage.keeps_work for stage in stages):
                error.add_note("run the same command to go on")
            is_recorded = _record_failure(run, error, losses.num_workers)
            if is_recorded and isinstance(error, Exception):  # a signal asks for an immediate end
                write_report(run.uri, settings)
            raise


def kept_of(conf: str | None, *, makes_model: bool = True) -> record.Kept:
    """Tell what stays of a run's configuration after a command for this run: `conf` is its run.json.

    A cluster is of one command, and so are all settings of a command that makes no other model.
    """
    if conf is None or storage.name(conf) != RECORD:
        return "nothing"
    return "cluster" if makes_model else "all"


def _record_failure(run: record.RunRecord, error: BaseException, num_lost: int) -> bool:
    """Write the error to run.json, and return whether it was written.

    A run that has changed nothing leaves the run.json of an earlier run. It writes none for a wrong
    option, if no cluster has started, or after it has lost its lock.
    """
    if not run.is_begun and (run.has_earlier or isinstance(error, ConfigError | NoClusterError)):
        return False
    try:
        run.finish("failed", f"{type(error).__name__}: {error}", workers_lost=num_lost)
    except LockedError:
        return False
    except GraphMillError as failure:  # the first error matters
        log.warning("%s; what is there does not tell how this run has ended", failure)
        return False
    return True


def tell_verdict(run: record.RunRecord) -> None:
    """Say in one line whether the ranking of the run is good, as report.html does."""
    evaluated = run.stage("evaluate")
    if evaluated.get("status") == "done":
        terminal.say(verdict(evaluated, run.content["before"] or {}).text)


def write_report(record_uri: str, settings: Config) -> None:
    """Write report.html beside run.json; an error is only logged."""
    try:
        from graphmill import report  # which most commands do without

        log.info("report: %s", report.write_at(record_uri, settings.embedding_path, settings.init_path))
    except Exception as error:
        log.warning("report: none was written: %s: %s", type(error).__name__, error)


def run_stage(
    stage: Stage, conf: str | None, overrides: tuple[str, ...], master: str | None, *, dry_run: bool
) -> None:
    """Run one stage alone, or show what it takes."""
    settings = config.load(conf, overrides)
    if dry_run:
        show_plan(settings, [stage], master)
        return
    check_storage(settings, [stage])
    stage.job.check(resolve_auto_values(settings))
    with session(settings, master, [stage], kept=kept_of(conf)) as run:
        entry = run(stage, resume=False)
    terminal.show_table(stage.name, summary({stage.name: entry}))
    run.report()


def show_plan(settings: Config, stages: Sequence[Stage], master: str | None) -> None:
    """Check the configuration for `stages`, and show what they take on the cluster `master`."""
    options = settings.cluster
    check_storage(settings, stages)
    is_small = are_small_stages(settings, stages)
    check_memory(master, options, [stage.name for stage in stages], is_small=is_small)
    coming = [uri for stage in stages for uri in stage.job.written_uris(settings)]
    for stage in stages:
        stage.job.check(settings, coming)
    check_outputs(settings, stages, table_roots(settings))
    check_writable([settings.output or settings.checkpoint_path, *coming])
    size = _finished_size(settings)
    rows = dict(asked_of_yarn(master, options))
    for stage in stages:
        estimate = stage.job.estimate(settings, size)
        rows |= estimate.rows
        size = estimate.size or size
        if size is not None:
            counts = {kind: [number] for kind, number in size.num_entities.items()}
            settings = with_sizes(settings, counts, size.num_edges.get(TRAIN_SPLIT, 0))
    terminal.show_table("plan", rows)


def _finished_size(settings: Config) -> GraphSize | None:
    """Size of the graph as a finished ETL has counted it."""
    figures = recorded_stage("etl", settings)
    if "num_edges" not in figures:
        return None
    return GraphSize(
        figures["num_edges"], {name: sum(counts) for name, counts in figures.get("num_entities", {}).items()}
    )
