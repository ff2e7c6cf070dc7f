"""The interface between a run and its stages."""

from collections.abc import Collection, Iterable
from importlib import import_module
from typing import Any, Protocol, cast

from distributed import Client

from graphmill import storage
from graphmill.config import Config
from graphmill.config.stages import STAGES
from graphmill.formats.edge_buckets import bucket_uri
from graphmill.run.inputs import are_small
from graphmill.run.lock import NO_CLAIM, Claim
from graphmill.run.outlook import GraphSize, Outlook
from graphmill.vocab import Bucket


class Job(Protocol):
    """The functions of the module that does the work of a stage."""

    def run(self, config: Config, client: Client, claim: Claim = NO_CLAIM) -> dict[str, Any]:
        """Do the work, and check `claim` before each commit; return the figures of the stage."""

    def check(self, config: Config, coming: Collection[str] = ()) -> str:
        """Refuse wrong settings before anything is changed; return why there is nothing to do, or "".

        The folders `coming` are still to be written.
        """

    def fingerprint(self, config: Config) -> dict[str, Any]:
        """Return all that the output depends on, as JSON types."""

    def input_uris(self, config: Config) -> list[str]:
        """Return the files and folders that the stage reads."""

    def output_uris(self, config: Config) -> list[str]:
        """Return the folders that are marked as finished."""

    def written_uris(self, config: Config) -> list[str]:
        """Return all folders that the stage writes or replaces."""

    def outlook(self, config: Config, size: GraphSize | None) -> Outlook:
        """Estimate what the stage takes for a graph of that size; None: unknown."""

    def check_outputs(self, config: Config) -> None:
        """Refuse folders with files that the stage must not replace."""


def stages_of(config: Config) -> list[str]:
    """List the stages of a whole run: without etl where the configuration has buckets in place of tables."""
    left_out = {name for name, stage in STAGES.items() if stage.is_optional and getattr(config, name) is None}
    if config.etl is None and storage.exists(bucket_uri(config.edge_paths[0], Bucket(0, 0))):
        left_out.add("etl")
    return [name for name in STAGES if name not in left_out]


def are_small_stages(config: Config, stages: Iterable[str]) -> bool:
    """Tell whether each of the stages reads little, and processes do not share the training."""
    num_trainers = max(config.train.num_workers, config.num_gpus)
    return num_trainers < 2 and all(are_small(job_of(name).input_uris(config)) for name in stages)


def job_of(stage: str) -> Job:
    """Import the job of a stage."""
    return cast("Job", import_module(STAGES[stage].job))
