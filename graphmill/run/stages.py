"""The stages of a run. To add a stage, add a line to `STAGES`.

Jobs, settings and commands are found by name: `graphmill` imports no stage.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, cast

from distributed import Client

from graphmill.config import Config
from graphmill.display.readable import duration
from graphmill.run import summaries
from graphmill.run.lock import NO_CLAIM, Claim
from graphmill.run.summaries import Entry


class Job(Protocol):
    """The module that does a stage's work."""

    def run(self, config: Config, client: Client, claim: Claim = NO_CLAIM) -> dict[str, Any]:
        """Do the work, and check `claim` before each commit; return the figures of the stage."""

    def check(self, config: Config, coming: Collection[str] = ()) -> str:
        """Refuse wrong settings before anything is changed; return why there is nothing to do, or "".

        The folders `coming` are still to be written.
        """

    def fingerprint(self, config: Config) -> dict[str, Any]:
        """Return all that the output depends on, as JSON types."""

    def output_uris(self, config: Config) -> list[str]:
        """Return the folders that are marked as finished."""

    def written_uris(self, config: Config) -> list[str]:
        """Return all folders that the stage writes or replaces."""

    def check_outputs(self, config: Config) -> None:
        """Refuse folders with files that the stage must not replace."""


@dataclass(frozen=True)
class Stage:
    """One stage, with the names of its modules and classes.

    Attributes:
        name: Name of the stage, of its section in the configuration, and of its entry in run.json.
        job_module: Module that is a `Job`.
        settings: Module and class of the section.
        summary_rows: Label and text of each figure that a command prints at its end.
        command_module: Module whose `command` is `dask-submit {name}.py`; "" for a stage without one.
        tables: Module and function that list the user's tables, which no stage may replace.
    """

    name: str
    job_module: str
    settings: str
    summary_rows: Callable[[Entry], Iterable[tuple[str, str]]]
    command_module: str = ""
    tables: str = ""

    @property
    def job(self) -> Job:
        """The imported job."""
        return cast("Job", import_module(self.job_module))

    def user_tables(self, config: Config) -> list[str]:
        """Return the files and folders of the user's tables.

        Raises:
            ConfigError: the section of the stage is wrong.
        """
        return list(_named(self.tables)(config)) if self.tables else []


STAGES = {
    stage.name: stage
    for stage in (
        Stage(
            "etl",
            "etl.job",
            "etl.config:EtlConfig",
            summary_rows=summaries.etl,
            command_module="etl.__main__",
            tables="etl.tables.files:table_roots",
        ),
        Stage(
            "train",
            "train.job",
            "train.config:TrainConfig",
            summary_rows=summaries.train,
            command_module="train.__main__",
        ),
        Stage(
            "evaluate",
            "train.evaluation.evaluate",
            "train.config:EvaluateConfig",
            summary_rows=summaries.evaluate,
        ),
        Stage(
            "remap",
            "remap.job",
            "remap.config:RemapConfig",
            summary_rows=summaries.remap,
            command_module="remap.__main__",
        ),
    )
}

SECTIONS = {name: stage.settings for name, stage in STAGES.items()} | {
    "cluster": "graphmill.cluster:ClusterConfig",
    "schedule": "graphmill.run.dates:ScheduleConfig",
}


def check_sections(config: Config) -> None:
    """Check all sections that are not empty, also those of stages that are not to run.

    Raises:
        ConfigError: a key is unknown, missing, or of the wrong type.
    """
    for name, settings in SECTIONS.items():
        if getattr(config, name):
            config.section(name, _named(settings))


def summary(entries: Mapping[str, Entry]) -> dict[str, str]:
    """Return label and text of the main figures of several stages, from their entries in run.json."""
    rows: dict[str, str] = {}
    for name, entry in entries.items():
        if "reason" in entry:
            rows[name] = "left out"
        else:
            rows[f"{name}, time"] = duration(entry.get("seconds"))
            rows.update(STAGES[name].summary_rows(entry))
    return rows


def _named(name: str) -> Any:
    """Import `module:object`."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
