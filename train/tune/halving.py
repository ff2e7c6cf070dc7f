"""Successive halving (arXiv:1502.07943): all candidates train for few epochs, the best for more.

The budget is spent in rungs of equal time. The clock adds up the seconds that trials have measured: a search
that is run again with the results of its finished trials takes the same decisions.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, TypeVar

Changes = Mapping[str, Any]
"""Values by `key.path`, as for --set."""
Item = TypeVar("Item")

RUNGS = 4
KEPT = 3  # one of so many candidates gets to the next rung
FIRST_EPOCHS = 2


@dataclass(frozen=True)
class Trial:
    """One short training: what it changed, how long it took, and how well it ranks validation edges."""

    changes: dict[str, Any]
    rung: int
    epochs: int
    seconds: float
    mrr: float

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
        measured_s = [(each.changes, each.epoch_s) for each in last]
        done: list[Trial] = []
        for wave in _waves(coming, slots):
            epoch_s = [
                next((s for changes, s in measured_s if changes == each), worst_s * work(each))
                for each in wave
            ]
            share_s = budget_s * (rung + 1) / RUNGS
            is_enough = rung == 0 and spent_s >= share_s and len(done) > 1
            if is_enough or spent_s + epochs * max(epoch_s) > budget_s:
                break
            found = run(wave, epochs, rung)
            spent_s += max(each.seconds for each in found)
            worst_s = max(worst_s, *(each.epoch_s / work(each.changes) for each in found))
            done += found
        if not done:
            break
        trials += done
        last = sorted(done, key=lambda each: -each.mrr)  # of equals, the better guess
        if (following := _next_rung(last, budget_s - spent_s, RUNGS - 1 - rung, most_epochs, slots)) is None:
            break
        coming, epochs = [each.changes for each in last[: following[0]]], following[1]
    return trials


def best(trials: Sequence[Trial]) -> Trial:
    """Return the trial with the highest MRR of the last rung."""
    rung = max(trial.rung for trial in trials)
    return max((each for each in trials if each.rung == rung), key=lambda each: each.mrr)


def _next_rung(
    ranked: Sequence[Trial], left_s: float, rungs_left: int, most_epochs: int, slots: int
) -> tuple[int, int] | None:
    """Choose how many of the best candidates go on, and for how many epochs; None: the search has ended."""
    for rungs in sorted({rungs_left, min(rungs_left, 1)}, reverse=True):
        for kept in range(min(len(ranked), max(2, ceil(len(ranked) / KEPT))), 1, -1):
            epoch_s = sum(max(each.epoch_s for each in wave) for wave in _waves(ranked[:kept], slots))
            epochs = min(most_epochs, int(left_s / rungs / epoch_s)) if rungs else 0
            if epochs > ranked[0].epochs:
                return kept, epochs
    return None


def _waves(items: Sequence[Item], slots: int) -> Iterator[Sequence[Item]]:
    return (items[start : start + slots] for start in range(0, len(items), slots))
