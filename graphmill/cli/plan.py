"""The plan of a run: what its stages would take; shown by `graphmill check`, and by --dry-run."""

from collections.abc import Sequence

from etl.tables.files import table_roots
from graphmill.cli.stages import are_small_stages
from graphmill.cluster.resources import asked_of_yarn, check_memory
from graphmill.config import Config
from graphmill.display import terminal
from graphmill.run.auto_values import with_sizes
from graphmill.run.job import GraphSize, Stage
from graphmill.run.output_checks import check_outputs, check_storage
from graphmill.run.record import recorded_stage
from graphmill.vocab import TRAIN_SPLIT


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
