"""`graphmill check`; and all stages as one run that can be resumed: `dask-submit pipeline.py`."""

from datetime import datetime

import click

from graphmill import config, storage
from graphmill.cli import exit_codes
from graphmill.cli.options import date_option, dry_run_option, load_for, run_argument, run_options
from graphmill.display import terminal


@click.command("check", epilog="Example: graphmill check --conf conf/demo.yaml")
@date_option
@run_argument
@run_options
def check(conf: str | None, overrides: tuple[str, ...], master: str | None, day: datetime | None) -> None:
    """Check a configuration; print what a run would take.

    The tables are looked at, outputs can be written, and nothing is started.
    """
    from graphmill.cli.session import show_plan
    from graphmill.cli.stages import stages_of

    settings = load_for(day, conf, overrides)
    if settings is not None:
        show_plan(settings, stages_of(settings), master)


@click.command(
    "pipeline",
    context_settings=exit_codes.CONTEXT,
    epilog="Example: graphmill pipeline --conf graphmill:triples.yaml --set input=FOLDER --output FOLDER",
)
@date_option
@run_argument
@run_options
@dry_run_option
def command(
    conf: str | None, overrides: tuple[str, ...], master: str | None, dry_run: bool, day: datetime | None
) -> None:
    """Run all stages, but those that are finished.

    A stage is finished if it ended with the same settings and inputs.
    """
    from graphmill.cli.session import kept_of, session, show_plan, tell_verdict
    from graphmill.cli.stages import stages_of
    from graphmill.run import dates
    from graphmill.run.auto_values import resolve_auto_values
    from graphmill.run.output_checks import check_storage
    from graphmill.run.reading import summary

    settings = load_for(day, conf, overrides)
    if settings is None:
        return
    stages = stages_of(settings)
    if dry_run:
        show_plan(settings, stages, master)
        return
    check_storage(settings, stages)
    first, *others = stages
    coming = [*first.job.output_uris(settings), settings.checkpoint_path]
    planned = resolve_auto_values(settings)
    for stage in stages:  # reports a wrong setting of the last stage before the first stage runs
        stage.job.fingerprint(planned)
        stage.job.check(planned, coming)
    with session(settings, master, stages, kept=kept_of(conf)) as run:
        template = config.read_raw(conf, overrides)["output"] if day else ""
        if day:
            dates.hold_previous(settings, template, run.record.save)
        entries = {first.name: run(first, resume=True)}
        for stage in others:  # reports missing inputs of all stages before the second stage runs
            stage.job.check(resolve_auto_values(settings), [settings.checkpoint_path])
        entries |= {stage.name: run(stage, resume=True) for stage in others}
        run.record.claim.check()
        if settings.output is not None:
            schedule = settings.schedule
            storage.write_marker(settings.output, schedule.model_dump(include={"date", "previous_date"}))
            if day and schedule.keep:  # the output of one date names no others
                dates.retire(template, schedule.keep, schedule.date)
    terminal.show_table("pipeline", summary(entries))
    tell_verdict(run.record)
    terminal.say(f"embeddings: {settings.embedding_path}")
    run.report()


if __name__ == "__main__":
    exit_codes.main(command)
