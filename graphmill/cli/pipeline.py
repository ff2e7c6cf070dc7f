"""etl -> train -> evaluate -> remap as one run that can be resumed: `dask-submit pipeline.py`."""

import sys
from datetime import datetime

from graphmill.machine import forkserver

if __name__ == "__main__":
    forkserver.start_for("pipeline", sys.argv[1:])

import click

from graphmill import config, storage
from graphmill.cli import stage_command
from graphmill.config import Config
from graphmill.display import terminal
from graphmill.display.summary import summary
from graphmill.errors import ConfigError
from graphmill.run import dates
from graphmill.vocab import TRAIN_SPLIT

STAGES = ("etl", "train", "evaluate", "remap")


@click.command(
    "pipeline",
    epilog="Example: dask-submit pipeline.py --conf conf/triples.yaml --set input=FOLDER --set output=FOLDER",
)
@click.option(
    "--date",
    "day",
    type=click.DateTime(["%Y-%m-%d"]),
    metavar="YYYY-MM-DD",
    help="The date to run: fills {date} and {previous_date} in the configuration.",
)
@stage_command.run_options
def command(conf: str | None, overrides: tuple[str, ...], master: str | None, day: datetime | None) -> None:
    """Run all stages; one that is finished, from the same settings and inputs, is skipped."""
    if day:
        settings = dates.load(conf, overrides, day.date())
        if dates.is_finished(settings):
            click.echo(f"{settings.output}: finished, from a date that is retired by now; nothing to do")
            return
    else:
        settings = config.load(conf, overrides, transform=dates.refuse_places)
    _check(settings)
    coming = [*stage_command.stage_job("etl").output_uris(settings), settings.checkpoint_path]
    for name in STAGES:  # a typo in the last stage's section must not wait for the first ones
        stage_command.stage_job(name).fingerprint(settings)
        stage_command.stage_job(name).check(settings, coming)
    with stage_command.session(settings, master, STAGES) as run:
        if day:
            template = config.read_raw(conf, overrides)["output"]
            dates.hold_previous(settings, template, run.record.save)
        entries = {"etl": run("etl", resume=True)}
        for name in STAGES[1:]:  # nor must what the last ones lack
            stage_command.stage_job(name).check(settings, [settings.checkpoint_path])
        entries |= {name: run(name, resume=True) for name in STAGES[1:]}
        run.record.claim.check()
        _finish(settings, conf, overrides)
    terminal.show_table("pipeline", summary(entries))
    terminal.say(f"embeddings: {settings.embedding_path}")


def _finish(settings: Config, conf: str | None, overrides: tuple[str, ...]) -> None:
    """Mark the output as a whole, and let the oldest dates go."""
    if settings.output is None:
        return
    schedule = settings.section(dates.ScheduleConfig)
    storage.write_marker(settings.output, schedule.model_dump(include={"date", "previous_date"}))
    if schedule.keep:
        dates.retire(config.read_raw(conf, overrides)["output"], schedule.keep)


def _check(settings: Config) -> None:
    """Refuse to train on other edges than the ones that etl writes.

    Raises:
        ConfigError: the train split is not among `edge_paths`.
    """
    written = settings.split_path(TRAIN_SPLIT)
    if written not in settings.edge_paths:
        read = ", ".join(settings.edge_paths)
        raise ConfigError(f"edge_paths: etl writes {written}, training reads {read}; let them agree")


def main() -> None:
    """Entry of `python -m graphmill.cli.pipeline`."""
    stage_command.main(command)


if __name__ == "__main__":
    main()
