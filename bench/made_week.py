"""Made-up days of a graph of triples: the tables of `python -m bench week` and `month`.

    base-000.tsv ...    the first day; one of these files leaves each day, and all edges of ids that go
    new-1.tsv ...       edges of one day each: those of ids that are new then; drift; others
    test_old.tsv        test edges without new, drifted and gone ids
    test_new.tsv, test_drift_1.tsv ...     test edges with new ids, and with those of a wave of drift
    first.tsv           a few edges, in the place of test_new.tsv on days before the last

Drift: the new edges of an id are those of another id, with the one in the other's place. Waves of drift
come one after the other, take as many days each, and have ids of their own.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

Triple = tuple[str, str, str]

NUM_FILES = 200
_DRIFTED_EDGES, _DRIFTED_TESTS = 6, 2
_GONE_PER_DAY = 5


@dataclass(frozen=True)
class Week:
    """The folder of the tables, and the ids whose edges were planted."""

    folder: Path
    num_days: int
    drifted: frozenset[str]
    gone: frozenset[str]

    def paths(self, day: int) -> list[str]:
        """Files of the train edges on a day from 0."""
        base = [f"base-{number:03d}.tsv" for number in range(day, NUM_FILES)]
        return [*base, *(f"new-{number}.tsv" for number in range(1, day + 1))]


def make(source: Path, folder: Path, num_days: int, num_waves: int = 1) -> Week:
    """Cut the graph of a folder with train.txt and test.txt into days."""
    train, test = (_read(source / name) for name in ("train.txt", "test.txt"))
    return _Maker(train, test, num_days, num_waves).write(folder)


class _Maker:
    def __init__(
        self, train: Sequence[Triple], test: Sequence[Triple], num_days: int, num_waves: int
    ) -> None:
        self.random = random.Random(0)
        self.train, self.test = train, test
        self.num_days, self.num_waves = num_days, num_waves
        self.of: dict[str, list[int]] = defaultdict(list)
        for number, (lhs, _, rhs) in enumerate(train):
            for name in {lhs, rhs}:
                self.of[name].append(number)
        self.days: dict[int, list[Triple]] = {day: [] for day in range(1, num_days + 1)}
        self.left = set(range(len(train)))
        names = sorted(self.of)
        self.random.shuffle(names)
        few = [name for name in names if 5 <= len(self.of[name]) <= 60]
        num_new = max(1, len(names) // 700) * num_days
        self.day_of = {name: 1 + n * num_days // num_new for n, name in enumerate(few[:num_new])}
        self.gone = [name for name in few[num_new:] if len(self.of[name]) <= 30][: _GONE_PER_DAY * num_days]
        known = {*self.day_of, *self.gone}
        rest = [name for name in names if name not in known and len(self.of[name]) >= 10]
        num_drifted = min(len(names) // 10, len(rest) // 2)
        self.drifted, self.partners = rest[:num_drifted], rest[num_drifted:]

    def write(self, folder: Path) -> Week:
        folder.mkdir(parents=True)
        drift_tests = self._drift()
        self._new_ids()
        leaving = self._leaving()
        order = sorted(self.left)
        self.random.shuffle(order)
        for edges in self.days.values():
            while len(edges) < len(self.train) // 100:
                edges.append(self.train[order.pop()])
        size = -(-len(order) // NUM_FILES)
        for number in range(NUM_FILES):
            own = [self.train[each] for each in order[number * size : (number + 1) * size]]
            self._write(folder / f"base-{number:03d}.tsv", own + leaving.get(number, []))
        for day, edges in self.days.items():
            self._write(folder / f"new-{day}.tsv", edges)
        planted = {*self.day_of, *self.drifted, *self.gone}
        known = [each for each in self.test if each[0] in self.of and each[2] in self.of]
        old = [each for each in known if not planted & {each[0], each[2]}]
        self._write(folder / "test_old.tsv", old)
        self._write(folder / "first.tsv", old[:50])
        self._write(folder / "test_new.tsv", [each for each in known if {each[0], each[2]} & {*self.day_of}])
        for wave, edges in drift_tests.items():
            self._write(folder / f"test_drift_{wave}.tsv", edges)
        return Week(folder, self.num_days, frozenset(self.drifted), frozenset(self.gone))

    def _drift(self) -> dict[int, list[Triple]]:
        """Plant drift into the days; return test edges of each wave, from 1."""
        known, tests = {*self.train, *self.test}, defaultdict[int, list[Triple]](list)
        length = self.num_days // self.num_waves
        for place, name in enumerate(self.drifted):
            other = self.partners[place % len(self.partners)]
            made: list[Triple] = []
            for number in self.random.sample(self.of[other], len(self.of[other])):
                lhs, relation, rhs = self.train[number]
                edge = name if lhs == other else lhs, relation, name if rhs == other else rhs
                is_free = edge not in known and not {edge[0], edge[2]} & {*self.day_of}
                if is_free and len(made) < _DRIFTED_EDGES + _DRIFTED_TESTS:
                    known.add(edge)
                    made.append(edge)
            wave = place % self.num_waves
            tests[1 + wave] += made[:_DRIFTED_TESTS]
            for turn, edge in enumerate(made[_DRIFTED_TESTS:]):
                self.days[1 + wave * length + (turn + place) % length].append(edge)
        return tests

    def _new_ids(self) -> None:
        """Move the edges of new ids to their days; an edge of two new ids comes with the later."""
        for name in self.day_of:
            for number in self.of[name]:
                lhs, _, rhs = self.train[number]
                if number in self.left:
                    self.left.remove(number)
                    day = max(self.day_of.get(lhs, 0), self.day_of.get(rhs, 0))
                    self.days[day].append(self.train[number])

    def _leaving(self) -> dict[int, list[Triple]]:
        """Take the edges of ids that go; return them by the number of their file."""
        found: dict[int, list[Triple]] = defaultdict(list)
        for place, name in enumerate(self.gone):
            for number in self.of[name]:
                if number in self.left:
                    self.left.remove(number)
                    found[place % self.num_days].append(self.train[number])
        return found

    def _write(self, path: Path, edges: Iterable[Triple]) -> None:
        rows = list(edges)
        self.random.shuffle(rows)
        path.write_text("".join("\t".join(each) + "\n" for each in rows))


def _read(path: Path) -> list[Triple]:
    rows = (line.rstrip("\n").split("\t") for line in path.read_text().splitlines())
    return [(lhs, relation, rhs) for lhs, relation, rhs in rows]
