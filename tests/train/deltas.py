"""Two days of a small graph for the training of a delta: real output of etl, and an earlier checkpoint.

The second day has the files of the first, without `num_gone` of them, and a file more, whose rows are those
of `new_edges`: a few old ids, and new ones. Weights, where the tables have them, number all files' rows.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from etl import job as etl_job
from graphmill.checkpoints import pbg
from graphmill.config import Config, from_mapping
from graphmill.config.partitions import all_keys
from graphmill.formats import entity_index
from tests.etl.graphs import write_parquet
from tests.train.graphs import USUAL
from train import job

Edge = tuple[str, str, str]

NUM_USERS, NUM_ITEMS, NUM_CITIES = 60, 40, 6
KINDS = {"knows": ("user", "user"), "saw": ("user", "item"), "lives": ("user", "city")}
NEW_USERS, NEW_ITEMS, NEW_CITIES = ("v0", "v1", "v2", "v3"), ("j0", "j1"), ("d0",)
RELATIONS = [
    {"name": "knows", "lhs": "user", "rhs": "user", "operator": "complex_diagonal"},
    {"name": "saw", "lhs": "user", "rhs": "item", "operator": "diagonal"},
    {"name": "lives", "lhs": "user", "rhs": "city", "operator": "translation"},
]
ADDED = "z-added"


def old_edges(seed: int = 3, num: int = 500) -> list[Edge]:
    """Edges that follow a plan: ids know, see and live in what has their number modulo a few."""
    rng = np.random.default_rng(seed)
    found = [(f"u{n}", "lives", f"c{n % NUM_CITIES}") for n in range(NUM_USERS)]
    found += [(f"u{n}", "knows", f"u{(n + 1) % NUM_USERS}") for n in range(NUM_USERS)]
    found += [(f"u{n % NUM_USERS}", "saw", f"i{n % NUM_ITEMS}") for n in range(NUM_USERS)]
    while len(found) < num:
        user, name = int(rng.integers(NUM_USERS)), str(rng.choice(["knows", "saw"]))
        step = 6 * int(rng.integers(1, 6))
        other = (user + step) % NUM_USERS if name == "knows" else (user + step) % NUM_ITEMS
        found.append((f"u{user}", name, f"{'u' if name == 'knows' else 'i'}{other}"))
    return found


def new_edges() -> list[Edge]:
    """The edges of the second day: of ten old users and some old items, and of new ids of all types."""
    rng = np.random.default_rng(11)
    found = [(f"u{n}", "saw", f"i{m}") for n in range(10) for m in rng.choice(12, 3, replace=False)]
    found += [(f"u{n}", "knows", f"u{9 - n}") for n in range(4)] + [("u2", "lives", "c1")]
    for number, user in enumerate(NEW_USERS):  # like users of the same number, modulo the cities
        found += [(user, "saw", f"i{n}") for n in range(12, NUM_ITEMS) if (n - number) % 6 == 0]
        found += [(user, "lives", f"c{number}"), (f"u{30 + number}", "knows", user)]
    found += [(f"u{n}", "saw", item) for k, item in enumerate(NEW_ITEMS) for n in range(k, 60, 6)]
    found += [(f"u{n}", "lives", "d0") for n in (20, 21)]
    found += [("v0", "knows", "v1"), ("w0", "knows", "w1"), ("w1", "saw", "k0")]  # w0, w1, k0: among new
    return found


def is_old(name: str) -> bool:
    """Whether the first day has the id."""
    return name[0] in "uic"


class TwoDays:
    """The raw tables and etl's output of both days, and the first day's training."""

    def __init__(
        self,
        root: Path,
        client: Any,
        *,
        partitions: int = 1,
        more: Sequence[Edge] = (),
        first: Sequence[Edge] | None = None,
        second: Sequence[Edge] | None = None,
        weights: bool = False,
        num_files: int = 3,
        num_gone: int = 0,
        **settings: Any,
    ) -> None:
        self.root, self.client, self.weights = root, client, weights
        entities = {name: {"num_partitions": partitions} for name in ("user", "item")}
        entities["city"] = {"num_partitions": 1}
        self.settings = {"entities": entities, "relations": RELATIONS, **USUAL} | settings
        self.old = list(old_edges() if first is None else first)
        self.new = [*(new_edges() if second is None else second), *more]
        for number in range(num_files):
            self._write(f"day{number}", self.old[number::num_files], number)
        etl_job.run(self.config("one"), client)
        self._write(ADDED, self.new, num_files)
        gone, kept = range(num_gone), range(num_gone, num_files)
        for number in gone:
            (self.root / f"raw/edges/day{number}.parquet").unlink()
        left = {*self.new, *(each for n in kept for each in self.old[n::num_files])}
        self.removed = sorted({each for n in gone for each in self.old[n::num_files]} - left)
        etl_job.run(self.config("two", after="one"), client)

    def _write(self, name: str, edges: Sequence[Edge], number: int) -> None:
        lhs, rel, rhs = (np.array(column, "O") for column in zip(*edges, strict=True))
        columns = {"l": lhs, "r": rel, "t": rhs}
        if self.weights:
            columns["w"] = np.arange(len(edges), dtype=np.float64) + 10_000.0 * number + 1
        write_parquet(self.root / f"raw/edges/{name}.parquet", **columns)

    def config(self, day: str, after: str | None = None, name: str | None = None, **settings: Any) -> Config:
        """The configuration of a day, which trains into checkpoint `name`, after the training of `after`."""
        table = {"path": "edges/*.parquet", "lhs": "l", "rhs": "t", "relation_column": "r"}
        etl: dict[str, Any] = {"tables": [table | ({"weight": "w"} if self.weights else {})]}
        if after:
            for key, folder in (("previous_entity_path", "entities"), ("previous_edge_path", "edges")):
                etl[key] = str(self.root / after / folder)
        train = {"resident": "never", "commit_interval_s": 0} | settings.pop("train", {})
        own = {"input": str(self.root / "raw"), "output": str(self.root / day)}
        own |= {"checkpoint_path": str(self.root / (name or f"{day}-checkpoint"))}
        own |= {"init_path": str(self.root / f"{after}-checkpoint")} if after else {}
        own |= {"etl": etl | settings.pop("etl", {}), "train": train}
        return from_mapping(self.settings | own | settings)

    def train_first(self, **settings: Any) -> Config:
        """Train the first day."""
        config = self.config("one", **settings)
        job.run(config, self.client)
        return config

    def trained(self, **settings: Any) -> Self:
        """Train the first day; these days."""
        self.train_first(**settings)
        return self

    def second(self, name: str = "two-checkpoint", **settings: Any) -> Config:
        """The configuration of a delta."""
        train = {"replay": 1.0} | settings.pop("train", {})
        return self.config("two", "one", name, train=train, **settings)


def state_of(config: Config) -> dict[tuple[str, str], tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Embeddings and sums by type and raw id."""
    version = pbg.read_version(config.checkpoint_path)
    found = {}
    for name, part in all_keys(config):
        rows, state = pbg.read_embeddings(config.checkpoint_path, name, part, version)
        assert state is not None
        sums = torch.as_tensor(state["state"][0]["sum"]).numpy()
        ids = entity_index.read_part(config.entity_path, name, part).to_pylist()
        for row, raw_id in enumerate(ids):
            found[name, raw_id] = rows[row], sums[row]
    return found


def ends_of(edges: Sequence[Edge], *, known: bool) -> set[tuple[str, str]]:
    """Types and ids of edges; `known`: of those between old ids."""
    return {
        end
        for lhs, rel, rhs in edges
        if not known or (is_old(lhs) and is_old(rhs))
        for end in ((KINDS[rel][0], lhs), (KINDS[rel][1], rhs))
    }


def check_still(before: Config, after: Config, new: Sequence[Edge], *, leave: Sequence[str] = ()) -> None:
    """Old rows without added edges are the same to the last bit, those with added edges moved."""
    then, now = state_of(before), state_of(after)
    moved = ends_of(new, known=True)
    assert then.keys() < now.keys()
    stayed = 0
    for key, (row, total) in then.items():
        is_same = row.tobytes() == now[key][0].tobytes() and total.tobytes() == now[key][1].tobytes()
        if key in moved:
            assert row.tobytes() != now[key][0].tobytes(), key
            assert (now[key][1] >= total).all(), key
            assert (now[key][1] > total).any(), key
        elif key[0] not in leave:
            assert is_same, key
            stayed += 1
    assert stayed > 20 or len(leave) == len({key[0] for key in then})
