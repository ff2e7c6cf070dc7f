"""Successive halving keeps its budget, keeps the best, and repeats."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.tune.halving import FIRST_EPOCHS, Trial, best, search


@dataclass
class Simulated:
    """Candidates with a quality and seconds of an epoch; the MRR of a candidate grows with its epochs."""

    quality: list[float]
    epoch_s: list[float]
    begun: list[tuple[int, int, int]] = field(default_factory=list)

    def search(self, budget_s, slots=1, most_epochs=64):
        changes = [{"lr": number} for number in range(len(self.quality))]
        return search(changes, self.run, self.work, budget_s=budget_s, most_epochs=most_epochs, slots=slots)

    def work(self, changes):
        return 3 * self.epoch_s[changes["lr"]]

    def run(self, wave, epochs, rung):
        numbers = [each["lr"] for each in wave]
        self.begun += [(rung, number, epochs) for number in numbers]
        return [
            Trial(dict(each), rung, epochs, epochs * self.epoch_s[n], self.quality[n] * epochs / (epochs + 1))
            for each, n in zip(wave, numbers, strict=True)
        ]


searches = st.integers(1, 30).flatmap(
    lambda count: st.builds(
        Simulated,
        st.lists(st.floats(0.01, 1), min_size=count, max_size=count),
        st.lists(st.floats(0.1, 5), min_size=count, max_size=count),
    )
)


def spent_s(trials, slots):
    total = 0.0
    for rung in {each.rung for each in trials}:
        of_rung = [each.seconds for each in trials if each.rung == rung]
        total += sum(max(of_rung[start : start + slots]) for start in range(0, len(of_rung), slots))
    return total


@given(searches, st.floats(50, 2000), st.integers(1, 4))
def test_the_best_of_a_rung_gets_to_the_next(simulated, budget_s, slots):
    trials = simulated.search(budget_s, slots)
    best_of = [
        max(simulated.quality[each.changes["lr"]] for each in trials if each.rung == rung)
        for rung in range(1 + max(each.rung for each in trials))
    ]
    assert len(set(best_of)) == 1
    assert simulated.quality[best(trials).changes["lr"]] == best_of[0]


@given(searches, st.floats(1, 2000), st.integers(1, 4), st.integers(1, 64))
def test_within_the_budget_rungs_have_fewer_candidates_and_more_epochs(
    simulated, budget_s, slots, most_epochs
):
    trials = simulated.search(budget_s, slots, most_epochs)
    begun = list(simulated.begun)
    assert simulated.search(budget_s, slots, most_epochs) == trials
    assert simulated.begun == 2 * begun
    first_s = max(each.seconds for each in trials[:slots])  # nothing was measured before
    assert spent_s(trials, slots) <= max(budget_s, first_s) * (1 + 1e-9)
    rungs = [[each for each in trials if each.rung == n] for n in range(1 + trials[-1].rung)]
    epochs = [{each.epochs for each in rung} for rung in rungs]
    assert all(len(each) == 1 for each in epochs)
    flat = [each.pop() for each in epochs]
    assert flat[0] == min(FIRST_EPOCHS, most_epochs)
    assert flat == sorted(set(flat))
    assert flat[-1] <= most_epochs
    sizes = [len(rung) for rung in rungs]
    assert sizes == sorted(sizes, reverse=True)


def test_much_time_is_used():
    simulated = Simulated([0.1 * number for number in range(9)], [1.0] * 9)
    trials = simulated.search(100, most_epochs=1000)
    assert len([each for each in trials if each.rung == 0]) == 9
    assert spent_s(trials, 1) > 90
    assert best(trials).changes == {"lr": 8}


def test_dear_candidates_still_meet_for_more_epochs():
    simulated = Simulated([0.5, 0.6, 0.1], [5.0, 5.0, 1.0])
    assert {each.rung for each in simulated.search(60)} == {0, 1}


@pytest.mark.parametrize("budget_s", [0.5, 3.0])
def test_too_little_time_runs_one_trial(budget_s):
    assert len(Simulated([0.1, 0.2], [1.0, 5.0]).search(budget_s)) == 1
