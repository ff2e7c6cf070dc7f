"""The search of `graphmill tune`: tables are read, candidates tried, and the best configuration written."""

import shlex
from typing import Any

from rich.console import Console
from rich.table import Table

from graphmill import config, storage
from graphmill.ask.evaluate.inputs import obstacle_to_ranking
from graphmill.cli.session import session
from graphmill.cli.stages import ETL, TRAIN
from graphmill.config import Config
from graphmill.config.reading import resolved
from graphmill.config.yaml_text import edited, place
from graphmill.convert.legacy import import_legacy_inputs
from graphmill.display import terminal
from graphmill.errors import ConfigError
from graphmill.run.auto_values import resolve_auto_values
from graphmill.run.job import Stage
from graphmill.run.record import is_finished
from train.tune.sample import VALID_SPLIT
from train.tune.tuner import Tuner, TuningResult, described

_VALIDATIONS = 8  # of a run
_FOLDER = "tune"


def tune(
    conf: str | None,
    overrides: tuple[str, ...],
    master: str | None,
    *,
    minutes: float,
    most: int,
    target: str,
) -> None:
    """Search, and write the best configuration."""
    if storage.exists(target):
        raise ConfigError(f"{target}: there is a file of that name; remove it, or choose another --to")
    settings = config.load(conf, overrides)
    if conf is None or not resolved(conf).endswith((".yaml", ".yml")):
        raise ConfigError(f"--conf: expected a YAML file to change, found {conf}")
    text = storage.read_text(resolved(conf))
    own, stage = _own(settings)
    stage.job.check(own, [])
    with session(own, master, [stage], is_long=True) as run:
        run.record.save()  # tells the next search that the folder is ours
        if stage is ETL:
            run(ETL, resume=True)
        graph = resolve_auto_values(import_legacy_inputs(own))
        if obstacle := obstacle_to_ranking(graph, graph.edge_paths[0]):
            raise ConfigError(f"tune: {obstacle}")
        result = Tuner(graph, str(own.output), minutes, most, run.client, run.record.claim).run()
        changes = result.best.changes | _early_stopping(graph)
        storage.write_text(target, edited(text, changes, conf))
    _show(result)
    terminal.say(_judgement(result))
    kept = [override for override in overrides if place(override) not in map(place, changes)]
    words = [word for override in kept for word in ("--set", override)]
    terminal.say(f"{target}: {described(changes)}")
    terminal.say(f"next: {shlex.join(['graphmill', 'pipeline', '--conf', target, *words])}")
    run.report()


def _own(settings: Config) -> tuple[Config, Stage]:
    """Choose the folder of the search, and the first stage that it has to run; reuse finished edges."""
    folder = storage.join(settings.output or settings.checkpoint_path, _FOLDER)
    places: dict[str, Any] = {"output": folder, "checkpoint_path": storage.join(folder, "checkpoint")}
    needs_etl = settings.etl is not None and not is_finished(ETL.name, ETL.job, settings)
    if needs_etl:
        root = storage.join(folder, "edges")
        paths = tuple(storage.join(root, split) for split in settings.edge_path_splits)
        places |= {"entity_path": storage.join(folder, "entities"), "edge_root": root, "edge_paths": paths}
    return settings.model_copy(update=places), ETL if needs_etl else TRAIN


def _early_stopping(graph: Config) -> dict[str, Any]:
    """Keys that end a run with its best epoch, where the graph has validation edges and none are named."""
    has_none = bool(obstacle_to_ranking(graph, graph.split_path(VALID_SPLIT)))
    if has_none or graph.train.validate_split is not None:
        return {}
    return {
        "train.validate_split": VALID_SPLIT,
        "train.validate_every": max(1, graph.num_epochs // _VALIDATIONS),
    }


def _judgement(result: TuningResult) -> str:
    """Say what the search has gained, on edges that decided nothing in it."""
    where = f"on {result.sample.num_unseen:,} edges that no trial has seen"
    if result.best is result.before:
        return (
            f"nothing is better than the configuration as it is: {where}, its MRR is {result.best.unseen:.4f}"
        )
    return f"{where}: MRR before {result.before.unseen:.4f}, after {result.best.unseen:.4f}"


def _show(result: TuningResult) -> None:
    table = Table("rung", "epochs", "seconds", "MRR", "change", title="tune")
    for trial in sorted(result.trials, key=lambda trial: (-trial.rung, -trial.mrr)):
        numbers = (str(trial.rung + 1), str(trial.epochs), f"{trial.seconds:.1f}", f"{trial.mrr:.4f}")
        table.add_row(*numbers, described(trial.changes))
    if not terminal.options.quiet and not terminal.options.json_lines:
        Console().print(table)
