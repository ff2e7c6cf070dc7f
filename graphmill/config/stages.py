"""The stages of a run. To add a stage, add a line to `STAGES`.

Modules and classes are found by name, because the packages of the stages build on this one.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Stage:
    """One stage. Names of objects are `module:object`."""

    name: str
    """Name of the stage, of its section in the configuration, and of its entry in run.json."""
    job: str
    """Module that does the work, a `graphmill.run.job.Job`."""
    summary: str
    """Function that yields the main figures of an entry in run.json: label and text."""
    command: str = ""
    """Command of `dask-submit {name}.py`; "" for a stage without one."""
    keeps_work: bool = False
    """Whether the next run continues with the work of a run that was stopped."""
    tables: str = ""
    """Function that lists the user's tables, which no stage may replace."""
    is_optional: bool = False
    """Whether a run has the stage only if the configuration has its section."""
    shared: str = ""
    """Function that lists the folders that the stage writes and that may hold files of others."""
    least_mib: int = 256
    """Memory that a worker needs before it has any data: an idle one takes 170, with PyTorch 580."""


STAGES = {
    stage.name: stage
    for stage in (
        Stage(
            "etl",
            job="etl.job",
            summary="graphmill.run.summaries:etl",
            command="etl.__main__:command",
            keeps_work=True,
            tables="etl.tables.files:table_roots",
            shared="etl.run.outputs:shared_uris",
        ),
        Stage(
            "train",
            job="train.job",
            summary="graphmill.run.summaries:train",
            command="train.__main__:command",
            keeps_work=True,
            least_mib=768,
        ),
        Stage(
            "evaluate",
            job="graphmill.ask.evaluate.job",
            summary="graphmill.run.summaries:evaluate",
            least_mib=768,
        ),
        Stage(
            "remap",
            job="remap.job",
            summary="graphmill.run.summaries:remap",
            command="remap.__main__:command",
        ),
        Stage(
            "drift",
            job="graphmill.ask.drift.job",
            summary="graphmill.run.summaries:drift",
            is_optional=True,
        ),
    )
}


def named(name: str) -> Any:
    """Import `module:object`."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
