"""The search of `graphmill tune`: candidates from a table of recipes, tried by successive halving.

The first value of a key is what docs/how_to/choosing.md and docs/how_to/training.md advise.

Successive halving (arXiv:1502.07943): docs/how_to/tune.md. The first candidate goes on to every rung: it is
what the best one has to beat, on edges that chose nothing.
The clock adds up the seconds that trials have measured: a search that is run
again with the results of its finished trials takes the same decisions.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, TypeVar

from graphmill.config import Config
from graphmill.model import comparators
from graphmill.run.seeds import derived

Changes = Mapping[str, Any]
"""Values by `key.path`, as for --set."""
Item = TypeVar("Item")
Keys = Mapping[str, Any]
"""Values by key; all_negs is that of every relation, dimension a multiple of the present one."""

RUNGS = 4
KEPT = 3  # one of so many candidates gets to the next rung
FIRST_EPOCHS = 2
MOST_ENTITIES = 50_000  # of a type, for 1-vs-all without a sample
_SHARE_OF_FIRST = 0.5  # a candidate keeps the first value of a key so often

_SHARED: dict[str, tuple[Any, ...]] = {
    "dimension": (1.0, 2.0, 0.5),
    "relation_lr": (None, 0.05, 0.2),
    "train.lr_schedule": ("linear",),
}
RECIPES: dict[str, dict[str, tuple[Any, ...]]] = {
    "all entities": {
        "all_negs": (True,),
        "lr": (0.5, 0.2, 1.0, 0.1),
        "regularization_coef": (0.05,),  # and shares of it
        "batch_size": (500, 250, 1000),
        "train.candidates": (4000, 8000, 2000),
        "train.relation_init": ("small", "random"),
        **_SHARED,
    },
    "drawn": {
        "all_negs": (False,),
        "num_uniform_negs": (1000, 300),
        "lr": (0.1, 0.2, 0.5, 0.05),
        "regularization_coef": (0.03, 0.1, 0.01, 0.0),
        "batch_size": (500, 250, 1000, 2000),
        **_SHARED,
    },
}
_OF_ONE_RELATION: dict[str, tuple[Any, ...]] = {
    "lr": (0.05, 0.1, 0.2, 0.5),
    "regularization_coef": (0.2,),
    "batch_size": (64, 16, 256),
}
_WITHOUT_OPERATOR: dict[str, tuple[Any, ...]] = {
    "train.popularity": (True, False),
    "regularization_coef": (0.5,),
}
_SHARES = (1.0, 0.4, 2.0, 0.2, 4.0)
_MARGINS = (0.1, 0.05, 0.2, 0.5)


def recipes(config: Config, largest_type: int) -> dict[str, dict[str, tuple[Any, ...]]]:
    """Select the recipes, and of them the keys, that fit a model; the largest type has so many entities."""
    fitting = {name: dict(recipe) for name, recipe in RECIPES.items()}
    asked = fitting["all entities"]
    if len(config.relations) == 1 and not config.dynamic_relations:
        asked.update(_OF_ONE_RELATION)
        if config.relations[0].operator == "none" and config.comparator == "dot" and not config.bias:
            asked.update(_WITHOUT_OPERATOR)
    # The default of a configuration with all_negs follows the graph.
    follows = config.regularization_coef > 0 and all(relation.all_negs for relation in config.relations)
    middle = config.regularization_coef if follows else asked["regularization_coef"][0]
    asked["regularization_coef"] = tuple(float(f"{middle * share:.3g}") for share in _SHARES)
    can_sample = comparators.is_dot(config.comparator, config.bias)
    if not can_sample:
        asked["train.candidates"] = (None,)
    if config.loss_fn != "softmax" or (largest_type > MOST_ENTITIES and not can_sample):
        del fitting["all entities"]
    fitting["drawn"] |= {"train.candidates": (None,), "train.popularity": (False,)}
    for recipe in fitting.values():
        if config.comparator != "dot" or config.loss_fn != "softmax":
            del recipe["regularization_coef"]
        if all(relation.operator == "none" for relation in config.relations):
            recipe.pop("train.relation_init", None)
            del recipe["relation_lr"]
        if config.loss_fn == "ranking":
            recipe["margin"] = _MARGINS
    return fitting


def candidates(config: Config, largest_type: int, most: int) -> list[dict[str, Any]]:
    """List different candidates, best guesses first, as changes of a configuration by `key.path`.

    The first one changes nothing. The others are the recipes, then random neighbours of each in turn.
    """
    chosen: list[dict[str, Any]] = [{}]
    for keys in _endless(recipes(config, largest_type), config.seed):
        if (changes := _changes(config, keys)) not in chosen:
            chosen.append(changes)
        if len(chosen) == most:
            break
    return chosen


def _endless(chosen: Mapping[str, Mapping[str, tuple[Any, ...]]], seed: int) -> Iterator[Keys]:
    for recipe in chosen.values():
        yield {key: values[0] for key, values in recipe.items()}
    draw = random.Random(derived(seed, "tune"))
    while True:
        for recipe in chosen.values():
            yield {
                key: values[0] if draw.random() < _SHARE_OF_FIRST else draw.choice(values)
                for key, values in recipe.items()
            }


def _changes(config: Config, keys: Keys) -> dict[str, Any]:
    wanted = dict(keys)
    wanted["dimension"] = max(2, int(config.dimension * wanted["dimension"]) // 2 * 2)
    all_negs = wanted.pop("all_negs")
    wanted |= {f"relations.{number}.all_negs": all_negs for number in range(len(config.relations))}
    now = config.model_dump(mode="json") | {"train": config.train.model_dump(mode="json")}
    return {path: value for path, value in wanted.items() if _at(now, path) != value}


def _at(content: Any, path: str) -> Any:
    for key in path.split("."):
        content = content[int(key)] if isinstance(content, list) else content[key]
    return content


@dataclass(frozen=True)
class Trial:
    """One short training: what it changed, and how long it took."""

    changes: dict[str, Any]
    rung: int
    epochs: int
    seconds: float
    mrr: float  # of the validation edges, by which candidates go on
    unseen: float  # MRR of edges that decide nothing but whether the search has been of use

    @property
    def epoch_s(self) -> float:
        """Seconds of an epoch."""
        return self.seconds / self.epochs


def search(
    candidates: Sequence[Changes],
    run: Callable[[Sequence[Changes], int, int], Sequence[Trial]],
    work: Callable[[Changes], float],
    *,
    budget_s: float,
    most_epochs: int,
    slots: int = 1,
) -> list[Trial]:
    """Run trials until the budget is spent, the best last; no trial begins that would exceed the budget.

    Args:
        candidates: Candidates, best guesses first.
        run: Runs some candidates at the same time, for a number of epochs, in a rung.
        work: Relative work of an epoch of a candidate.
        budget_s: Seconds of all trials.
        most_epochs: Epochs of a trial at most.
        slots: Trials that run at the same time.
    """
    trials: list[Trial] = []
    spent_s, worst_s = 0.0, 0.0  # worst: seconds of an epoch, for each unit of work
    last: list[Trial] = []
    coming, epochs = list(candidates), min(FIRST_EPOCHS, most_epochs)
    for rung in range(RUNGS):
        measured_s = [(trial.changes, trial.epoch_s) for trial in last]
        done: list[Trial] = []
        for wave in _waves(coming, slots):
            epoch_s = [
                next((s for changes, s in measured_s if changes == wanted), worst_s * work(wanted))
                for wanted in wave
            ]
            share_s = budget_s * (rung + 1) / RUNGS
            is_enough = rung == 0 and spent_s >= share_s and len(done) > 1
            if is_enough or spent_s + epochs * max(epoch_s) > budget_s:
                break
            ended = run(wave, epochs, rung)
            spent_s += max(trial.seconds for trial in ended)
            worst_s = max(worst_s, *(trial.epoch_s / work(trial.changes) for trial in ended))
            done += ended
        if not done:
            break
        trials += done
        last = sorted(done, key=lambda trial: -trial.mrr)  # of equals, the better guess
        left = budget_s - spent_s, RUNGS - 1 - rung
        if (following := _next_rung(last, candidates[0], *left, most_epochs, slots)) is None:
            break
        coming, epochs = following
    return trials


def judged(trials: Sequence[Trial]) -> tuple[Trial, Trial]:
    """Return the first candidate and the best one, after the same epochs.

    They are the same where the best one, by its MRR, does not rank the unseen edges better.
    """
    before = [trial for trial in trials if trial.changes == trials[0].changes][-1]
    best = max((trial for trial in trials if trial.rung == before.rung), key=lambda trial: trial.mrr)
    return before, best if best.unseen > before.unseen else before


def _next_rung(
    ranked: Sequence[Trial], first: Changes, left_s: float, rungs_left: int, most_epochs: int, slots: int
) -> tuple[list[Changes], int] | None:
    """Choose the best candidates and the first, and their epochs; None: the search has ended."""
    others = [trial for trial in ranked if trial.changes != first]
    firsts = [trial for trial in ranked if trial.changes == first]
    for rungs in sorted({rungs_left, min(rungs_left, 1)}, reverse=True):
        for kept in range(min(len(ranked), max(2, ceil(len(ranked) / KEPT))), 1, -1):
            going = [*others[: kept - len(firsts)], *firsts]
            epoch_s = sum(max(trial.epoch_s for trial in wave) for wave in _waves(going, slots))
            epochs = min(most_epochs, int(left_s / rungs / epoch_s)) if rungs else 0
            if epochs > ranked[0].epochs:
                return [trial.changes for trial in going], epochs
    return None


def _waves(items: Sequence[Item], slots: int) -> Iterator[Sequence[Item]]:
    return (items[start : start + slots] for start in range(0, len(items), slots))
