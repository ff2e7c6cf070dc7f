"""The work of `graphmill tune`: the tuner's graph, the trials, and their record.

A trial is a task: a short training on the tuner's graph, ranked on its two kinds of held-out edges.

    output/tune/
      tune.json                 settings, the sample, every trial so far
      graph/                    the tuner's graph (train.tune.sample)
      entities/  edges/         only where the tables had no finished etl
      trial-{N}-{candidate}/    trials that run now

A search that is run again reads the trials of tune.json in place of running them. So a killed search goes on,
with the time that it had left.
"""

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from distributed import Client

from graphmill import cluster, storage
from graphmill.ask.evaluate import evaluate
from graphmill.ask.evaluate.inputs import training_scores
from graphmill.config import Config, apply_override, from_mapping
from graphmill.errors import ConfigError, FormatError, TrainingError
from graphmill.formats import entity_counts
from graphmill.run.fingerprints import describe_inputs
from graphmill.run.lock import Claim
from graphmill.vocab import TRAIN_SPLIT
from train import job
from train.tune.sample import UNSEEN_SPLIT, VALID_SPLIT, Sample, write_sample
from train.tune.search import Changes, Trial, candidates, judged, search

FILE = "tune.json"
EDGES_PER_MINUTE = 20_000
LEAST_EDGES = 5_000

log = logging.getLogger("graphmill")

# Of the section `train`: what a short run on another graph does without.
_LEFT_OUT = (
    "validate_split",
    "freeze",
    "init_embeddings",
    "num_workers",
    "tensorboard",
    "save_embed_path",
    "save_model_path",
    "memory_partitions",
)


def trial_config(config: Config, graph: str, folder: str, workers: int) -> Config:
    """Turn a configuration into that of trials: on the tuner's graph, below a folder, on some threads."""
    content = config.model_dump(mode="json")
    for section in ("etl", "remap", "cluster", "schedule"):
        del content[section]
    for entity in content["entities"].values():
        entity["num_partitions"] = 1
    edges = storage.join(graph, "edges")
    train = config.train.model_dump(mode="json", exclude_unset=True, exclude=set(_LEFT_OUT))
    return from_mapping(
        content
        | {
            "output": folder,
            "entity_path": storage.join(graph, "entities"),
            "edge_root": edges,
            "edge_paths": [storage.join(edges, TRAIN_SPLIT)],
            "checkpoint_path": storage.join(folder, "checkpoint"),
            "embedding_path": storage.join(folder, "embeddings"),
            "init_path": None,
            "checkpoint_preservation_interval": None,
            "num_edge_chunks": None,
            "eval_fraction": 0.0,
            "workers": workers,
            "train": train,
            "evaluate": {"split": VALID_SPLIT, "budget": "unlimited"},
        }
    )


def changed(config: Config, changes: Changes, **others: Any) -> Config:
    """Apply the changes of a candidate."""
    content: dict[str, Any] = config.model_dump(mode="json")
    for path, value in changes.items():
        apply_override(content, f"{path}={json.dumps(value)}")
    return from_mapping(content | others)


def work(config: Config, changes: Changes, num_entities: dict[str, int], num_edges: int) -> float:
    """Estimate the multiplications of an epoch of a candidate."""
    chosen = changed(config, changes, num_epochs=1)
    return training_scores(chosen, num_entities, num_edges) * chosen.dimension


def run_trial(config: Config, changes: dict[str, Any], rung: int, epochs: int, folder: str) -> Trial:
    """Train and rank a candidate; a loss that is not finite counts as the worst result."""
    import train.run.trainer  # noqa: F401 (imports torch: seconds that are no part of the first trial)

    start = time.monotonic()
    chosen = changed(
        config, changes, num_epochs=epochs, output=folder, checkpoint_path=storage.join(folder, "checkpoint")
    )
    storage.delete(folder)  # of a task that was lost
    try:
        job.train(chosen)
        ranked = [
            chosen.with_section(chosen.evaluate.model_copy(update={"split": split}))
            for split in (VALID_SPLIT, UNSEEN_SPLIT)
        ]
        mrr, unseen = (float(evaluate.evaluate(config)["metrics"]["mrr"]) for config in ranked)
    except TrainingError:
        mrr = unseen = 0.0
    storage.delete(folder)
    return Trial(changes, rung, epochs, time.monotonic() - start, mrr, unseen)


@dataclass(frozen=True)
class TuningResult:
    """The result of a search: the best trial, and that of the unchanged configuration, of as many epochs."""

    before: Trial
    best: Trial
    trials: list[Trial]
    sample: Sample


class Tuner:
    """One search, in a folder of its own."""

    def __init__(
        self, config: Config, folder: str, minutes: float, most: int, client: Client, claim: Claim
    ) -> None:
        """`config` has entities and edges, and is settled; at most `most` candidates are tried."""
        self._config, self._folder, self._minutes = config, folder, minutes
        self._uri = storage.join(folder, FILE)
        self._client, self._claim, self._most = client, claim, most
        hosts = cluster.workers_by_host(client)
        self._slots = 1 if config.num_gpus else max(1, hosts.total())
        sharers = 1 if config.num_gpus else max(hosts.values(), default=1)
        self._threads = max(1, (config.workers or cluster.num_cores()) // sharers)
        self._split = config.train.validate_split or VALID_SPLIT
        self._sample = Sample({}, 0, 0, 0, False)
        self._trials: list[Trial] = []
        self._made_from: dict[str, Any] = {}

    def run(self) -> TuningResult:
        """Search until the time is spent."""
        self._made_from = self._fingerprint()
        self._read()
        graph = self._graph()
        for leftover in storage.list_dir(self._folder):
            if storage.name(leftover.uri).startswith("trial-"):
                storage.delete(leftover.uri)
        counts = entity_counts.list_counts(self._config.entity_path).values()
        base = trial_config(self._config, graph, self._folder, self._threads)
        sample = self._sample
        log.info(
            "tune: trials on %s edges of %s entities, judged by %s %s; %d at a time",
            f"{sample.num_edges:,}",
            f"{sum(sample.num_entities.values()):,}",
            f"{sample.num_valid:,}",
            "edges held out" if sample.is_held_out else f"edges of {self._split}",
            self._slots,
        )
        trials = search(
            candidates(self._config, max(map(sum, counts)), self._most),
            partial(self._wave, base),
            lambda changes: work(base, changes, sample.num_entities, sample.num_edges),
            budget_s=60 * self._minutes,
            most_epochs=self._config.num_epochs,
            slots=self._slots,
        )
        if len(trials) < 2:
            needed = "" if not trials else f"; a trial takes {trials[0].seconds:.0f} s here"
            raise ConfigError(f"--minutes: {self._minutes:g} are too few for two trials{needed}")
        return TuningResult(*judged(trials), trials, sample)

    def _wave(self, base: Config, wave: Sequence[Changes], epochs: int, rung: int) -> list[Trial]:
        """Run trials at the same time, but for those that have been run before."""
        new = [changes for changes in wave if self._known(changes, epochs, rung) is None]
        arguments = [
            (base, changes, rung, epochs, storage.join(self._folder, f"trial-{len(self._trials)}-{number}"))
            for number, changes in enumerate(new)
        ]
        if arguments:
            description = f"tune: rung {rung + 1}, {epochs} epochs"
            cluster.run_tasks(
                self._client, run_trial, arguments, description=description, unit="trials", keep=self._add
            )
        return [trial for changes in wave if (trial := self._known(changes, epochs, rung)) is not None]

    def _known(self, changes: Changes, epochs: int, rung: int) -> Trial | None:
        wanted = (changes, epochs, rung)
        return next(
            (trial for trial in self._trials if (trial.changes, trial.epochs, trial.rung) == wanted), None
        )

    def _add(self, trial: Trial) -> Trial:
        self._trials.append(trial)
        self._write()
        log.info(
            "tune: MRR %.4f after %d epochs in %.1f s: %s",
            trial.mrr,
            trial.epochs,
            trial.seconds,
            described(trial.changes),
        )
        return trial

    def _graph(self) -> str:
        """Write the tuner's graph, unless it is there."""
        target = storage.join(self._folder, "graph")
        if storage.read_marker(target) == self._made_from and self._sample.num_edges:
            return target
        storage.delete(target)
        self._sample = cluster.run_task(
            self._client,
            write_sample,
            self._config,
            target,
            self._split,
            max(LEAST_EDGES, int(EDGES_PER_MINUTE * self._minutes)),
            description="tune: the densest part of the graph",
        )
        self._write()
        storage.write_marker(target, self._made_from)
        return target

    def _fingerprint(self) -> dict[str, Any]:
        """Return all that the trials depend on, but time."""
        config = self._config
        path = config.split_path(self._split)
        inputs = [config.entity_path, *config.edge_paths, *([path] if storage.is_dir(path) else [])]
        return {
            "settings": config.result_settings(),
            "train": config.train.result_settings(),
            "num_epochs": config.num_epochs,
            "minutes": self._minutes,
            "inputs": describe_inputs(inputs),
        }

    def _read(self) -> None:
        """Read the trials of an earlier search of the same; move that of another aside."""
        if not storage.exists(self._uri):
            return
        try:
            content = storage.read_json(self._uri)
            if content["made_from"] == self._made_from:
                self._sample = Sample(**content["sample"])
                self._trials = [Trial(**trial) for trial in content["trials"]]
                log.info("tune: going on after %d trials", len(self._trials))
                return
        except (KeyError, TypeError) as error:
            raise FormatError(f"{self._uri}: expected the trials of a search; move the file away") from error
        log.info("tune: another search was here: it is moved to %s", storage.move_aside(self._uri))

    def _write(self) -> None:
        self._claim.check()
        content = {
            "made_from": self._made_from,
            "sample": asdict(self._sample),
            "trials": [asdict(trial) for trial in self._trials],
        }
        storage.write_json(self._uri, content, indent=1)


def described(changes: Changes) -> str:
    """Describe the changes of a candidate in one line."""
    shown = {"all_negs" if path == "relations.0.all_negs" else path: changes[path] for path in changes}
    named = [f"{path} {value}" for path, value in shown.items() if not path.startswith("relations.")]
    return ", ".join(named) or "as configured"
