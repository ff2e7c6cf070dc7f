"""A run of training, by one worker or several: iterations, commits, validation, from the last commit on."""

from abc import ABC, abstractmethod
from typing import Any

from graphmill.config import Config
from graphmill.formats import pbg_checkpoint
from graphmill.formats.pbg_checkpoint import Iteration
from graphmill.run.lock import Claim
from graphmill.storage import Checksums
from train.edges.schedule import Schedule
from train.run.run_metrics import RunMetrics
from train.run.validation import Rank, Validation


class TrainingRun(ABC):
    """One run of training, resumed where its checkpoint ends.

    Attributes:
        version: committed version of the checkpoint.
    """

    def __init__(
        self, config: Config, schedule: Schedule, version: int, claim: Claim, evaluate: Rank
    ) -> None:
        """`version` is the committed one; `evaluate` ranks the edges of a split with a version."""
        self.config, self.schedule, self.claim = config, schedule, claim
        self.first_version = self.version = version
        claim.check()
        pbg_checkpoint.delete_uncommitted(config.checkpoint_path)
        self.metrics = RunMetrics(config, schedule, version)
        self.validation = Validation(config, schedule.per_epoch, version, self._rank)
        self._evaluate = evaluate
        self._of_config: Checksums = {}

    def run(self) -> dict[str, Any]:
        """Train the iterations that are left; returns the figures of the run."""
        self._of_config = pbg_checkpoint.write_config(self.config.checkpoint_path, self.config.pbg())
        try:
            while self.validation.after(self.version) and self.version < self.schedule.num_iterations:
                self.iterate(self.schedule.iteration(self.version))
            self.claim.check()
            self.version = self.validation.end(self.version)
        finally:
            self.close()
        versions = {"first_version": self.first_version, "version": self.version}
        return versions | self.own_figures() | self.metrics.figures() | self.validation.figures()

    def commit(self, checksums: Checksums) -> None:
        """Commit the next version, whose files have these checksums; clears the checksums."""
        path, version = self.config.checkpoint_path, self.version + 1
        pbg_checkpoint.append_stats(path, self.metrics.lines())
        self.claim.check()
        pbg_checkpoint.commit(
            path,
            version,
            preserve_epoch=self.schedule.preserved_epoch(self.config, version),
            checksums=checksums | self._of_config,
        )
        checksums.clear()
        self.version = version

    @abstractmethod
    def iterate(self, iteration: Iteration) -> None:
        """Train on all buckets of an iteration, and commit its version."""

    @abstractmethod
    def close(self) -> None:
        """End the threads or tasks of the run."""

    @abstractmethod
    def own_figures(self) -> dict[str, Any]:
        """The plan, and other figures that the buckets do not give."""

    def _rank(self, config: Config) -> dict[str, Any]:
        figures = self._evaluate(config)
        self.claim.check()  # evaluation takes long, and the result is written next
        return figures
