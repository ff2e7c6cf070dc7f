"""A run of training, by one worker or several: iterations, commits, validation, from the last commit on."""

from abc import ABC, abstractmethod
from typing import Any

from graphmill.checkpoints import pbg
from graphmill.checkpoints.pbg import Iteration
from graphmill.config import Config
from graphmill.run.lock import Claim
from graphmill.storage import Checksums
from train.edges.schedule import Schedule
from train.run.run_metrics import RunMetrics
from train.run.validation import Rank, Validation


class TrainingRun(ABC):
    """One run of training, resumed where its checkpoint ends.

    `version` is that of the checkpoint which the last iteration has made; it may be on its way to files.
    """

    def __init__(
        self, config: Config, schedule: Schedule, version: int, claim: Claim, evaluate: Rank
    ) -> None:
        """`version` is the committed one; `evaluate` ranks the edges of a split with a version."""
        self.config, self.schedule, self.claim = config, schedule, claim
        self.first_version = self.version = version
        claim.check()
        pbg.delete_uncommitted(config.checkpoint_path)
        self.metrics = RunMetrics(config, schedule, version)
        self.validation = Validation(config, schedule.per_epoch, version, self._rank)
        self._evaluate = evaluate
        self._of_config: Checksums = {}

    def run(self) -> dict[str, Any]:
        """Train the iterations that are left; returns the figures of the run."""
        self._of_config = pbg.write_config(self.config.checkpoint_path, self.config.pbg())
        try:
            while self._continues():
                self.iterate(self.schedule.iteration(self.version))
            self.wait_for_commit()
            self.claim.check()
            self.version = self.validation.end(self.version)
        finally:
            self.close()
        versions = {"first_version": self.first_version, "version": self.version}
        return versions | self.own_figures() | self.metrics.figures() | self.validation.figures()

    def commit(self, version: int, lines: list[dict[str, Any]], checksums: Checksums) -> None:
        """Commit a version and its `lines`, and clear `checksums`; may run in another thread."""
        path = self.config.checkpoint_path
        pbg.append_stats(path, lines)
        self.claim.check()
        pbg.commit(
            path,
            version,
            preserve_epoch=self.schedule.preserved_epoch(self.config, version),
            checksums=checksums | self._of_config,
        )
        checksums.clear()

    @abstractmethod
    def iterate(self, iteration: Iteration) -> None:
        """Train on all buckets of an iteration, and commit its version, or begin to."""

    def wait_for_commit(self) -> None:  # noqa: B027
        """Wait until the version is committed."""

    @abstractmethod
    def close(self) -> None:
        """End the threads or tasks of the run."""

    @abstractmethod
    def own_figures(self) -> dict[str, Any]:
        """The plan, and other figures that the buckets do not give."""

    def _continues(self) -> bool:
        """Tell whether there is another iteration; validates the version if its turn has come."""
        if self.validation.is_due(self.version):
            self.wait_for_commit()
        return self.validation.after(self.version) and self.version < self.schedule.num_iterations

    def _rank(self, config: Config) -> dict[str, Any]:
        figures = self._evaluate(config)
        self.claim.check()  # evaluation takes long, and the result is written next
        return figures
