"""Successive halving (arXiv:1502.07943): all candidates train for few epochs, the best for more.

The first candidate goes on to every rung: it is what the best one has to beat, on edges that chose nothing.

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
    """One short training: what it changed, and how long it took.

    Attributes:
        mrr: of the validation edges, by which candidates go on.
        unseen: MRR of edges that decide nothing but whether the search has been of use.
    """

    changes: dict[str, Any]
    rung: int
    epochs: int
    seconds: float
    mrr: float
    unseen: float

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
