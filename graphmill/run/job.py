"""The interface between a run and its stages, and what a run estimates before it starts."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from distributed import Client

from graphmill.config import Config
from graphmill.run.lock import NO_CLAIM, Claim

Rows = dict[str, str]
"""Lines of a table: label and text."""

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class GraphSize:
    """Size of a graph, counted or estimated."""

    num_edges: Sizes
    """Edges by split."""
    num_entities: Sizes
    """Entities by type."""


@dataclass(frozen=True)
class Estimate:
    """Estimated needs of a stage."""

    rows: Rows
    size: GraphSize | None = None
    """Size of the graph, as far as known after the stage."""


class Job(Protocol):
    """The functions of the module that does the work of a stage."""

    __name__: str

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

    def estimate(self, config: Config, size: GraphSize | None) -> Estimate:
        """Estimate what the stage takes for a graph of that size; None: unknown."""

    def check_outputs(self, config: Config) -> None:
        """Refuse folders with files that the stage must not replace."""


def no_folders(config: Config) -> list[str]:
    """No folders: the figures go to run.json. So a checkpoint can be evaluated while it is trained."""
    return []


def refuse_nothing(config: Config) -> None:
    """Check the outputs of a stage without folders."""


@dataclass(frozen=True)
class Stage:
    """One stage of a run."""

    name: str
    """Name of the stage, of its section in the configuration, and of its entry in run.json."""
    job: Job
    """Module that does the work."""
    keeps_work: bool = False
    """Whether the next run continues with the work of a run that was stopped."""
    shared_uris: Callable[[Config], list[str]] = lambda config: []
    """Return the folders that the stage writes and that may hold files of others."""
