"""The tuner's graph: the densest part of the training edges, in one partition, and edges to judge by.

Half of the edges that are no training edges judge trials, the other half only what has won. Other known edges
are no answers that count: a better model would have them before the edges that judge it.

Entities are peeled off, those with the fewest edges first, until few enough edges are left. What is left of
any graph is a k-core, or lies between two: of a tree it is a smaller tree. Shapes: N entities, E edges.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product, starmap

import numpy as np
import numpy.typing as npt

from graphmill import storage
from graphmill.ask.edges import Graph, Numbers, Piece, Triples, known_paths
from graphmill.config import Config
from graphmill.config.partitions import PartitionKey, all_buckets, keys_of
from graphmill.errors import ConfigError
from graphmill.formats import edge_buckets, entity_counts
from graphmill.formats.edge_buckets import Edges
from graphmill.formats.murmur import hash_edges, hash_numbers
from graphmill.run.seeds import derived, held_out
from graphmill.sorted_arrays import distinct, ranges
from graphmill.vocab import TRAIN_SPLIT, Bucket

VALID_SPLIT = "valid"
UNSEEN_SPLIT = "unseen"
_KNOWN_SPLIT = "known"  # filters rankings
FEW_VALID_EDGES = 500  # of both splits
_HELD_OUT = 0.05
MOST_READ = 1 << 24
_MOST_VALID = 10_000


@dataclass(frozen=True)
class Sample:
    """Sizes of the tuner's graph."""

    num_entities: dict[str, int]
    num_edges: int
    num_valid: int
    num_unseen: int
    is_held_out: bool
    """Whether the edges to judge by were taken from the training edges."""


def write_sample(
    config: Config, target: str, split: str, most_edges: int, most_read: int = MOST_READ
) -> Sample:
    """Write the tuner's graph into `target`; above `most_read` edges, from the first partitions alone.

    Where even those have more, from a part of their entities, drawn at random.
    """
    buckets = _first_buckets(config, most_read)
    graph = _Graph(config, buckets)
    edges = graph.read_all(config.edge_paths, buckets, most_read)
    if len(edges) < FEW_VALID_EDGES:
        raise ConfigError(f"{config.edge_paths[0]}: too few edges to tune with: {len(edges)}")
    is_chosen_N = densest(edges.lhs, edges.rhs, graph.size, most_edges, config.seed)

    def inside(some: Triples) -> Triples:
        return some[is_chosen_N[some.lhs] & is_chosen_N[some.rhs]]

    edges = inside(edges)
    path = config.split_path(split)
    valid = inside(graph.read_all([path] if storage.is_dir(path) else [], buckets))
    trained = {path.rstrip("/") for path in config.edge_paths}
    others = [folder for folder in known_paths(config) if folder not in trained and storage.is_dir(folder)]
    known = inside(graph.read_all(others, buckets))
    seed = derived(config.seed, "tune", "valid")
    is_held_out = len(valid) < FEW_VALID_EDGES
    if is_held_out:
        is_valid_E = _drawn_for_validation(config, edges, seed)
        edges, valid = edges[~is_valid_E], edges[is_valid_E]
    drawn = np.random.default_rng(seed).permutation(len(valid))[:_MOST_VALID]
    valid = valid[np.sort(drawn)]
    is_unseen_E = held_out((valid.lhs, valid.rel, valid.rhs), 0.5, derived(config.seed, "tune", "unseen"))
    valid, unseen = valid[~is_unseen_E], valid[is_unseen_E]
    if not (len(valid) and len(unseen)):
        raise ConfigError(f"{path}: the edges are too few to tune with, or the same")
    row_N, counts = graph.chosen_rows(is_chosen_N)
    entities = storage.join(target, "entities")
    for name, count in counts.items():
        entity_counts.write_count(entities, name, 0, count)
    if config.dynamic_relations:
        entity_counts.write_relation_count(entities, entity_counts.read_relation_count(config.entity_path))
    splits = {TRAIN_SPLIT: edges, VALID_SPLIT: valid, UNSEEN_SPLIT: unseen, _KNOWN_SPLIT: known}
    for name, own in splits.items():
        rows = Edges(row_N[own.lhs], own.rel, row_N[own.rhs], own.weight)
        edge_buckets.write_bucket(storage.join(target, "edges", name), Bucket(0, 0), rows)
    return Sample(counts, len(edges), len(valid), len(unseen), is_held_out)


def _drawn_for_validation(config: Config, edges: Triples, seed: int) -> npt.NDArray[np.bool_]:
    """Draw edges to be held out: some different ones, with all their copies. [E]"""
    columns = edges.lhs, edges.rel, edges.rhs
    num_distinct = len(distinct(hash_edges(*(hash_numbers(column, 0) for column in columns))))
    num = min(max(FEW_VALID_EDGES, int(_HELD_OUT * num_distinct)), _MOST_VALID, num_distinct // 2)
    is_valid_E = held_out(columns, num / max(num_distinct, 1), seed)
    if is_valid_E.all() or not is_valid_E.any():
        raise ConfigError(f"{config.edge_paths[0]}: too few different edges to tune with: {num_distinct}")
    return is_valid_E


def densest(
    lhs_E: Numbers, rhs_E: Numbers, num_entities: int, most_edges: int, seed: int
) -> npt.NDArray[np.bool_]:
    """Choose entities with at most so many edges among them: the last ones that peeling reaches. [N]"""
    order_N = peeled(lhs_E, rhs_E, num_entities, seed)
    first_E = np.sort(np.minimum(order_N[lhs_E], order_N[rhs_E]))[::-1]
    if len(first_E) <= most_edges:
        return np.ones(num_entities, bool)
    is_chosen_N: npt.NDArray[np.bool_] = order_N > first_E[most_edges]
    return is_chosen_N


def peeled(lhs_E: Numbers, rhs_E: Numbers, num_entities: int, seed: int) -> Numbers:
    """Number entities in the order in which peeling removes them; in a round, at random. [N]

    A round removes all entities with at most k edges to those that are left; k grows when there are none.
    """
    end_2E = np.concatenate([lhs_E, rhs_E])
    other_2E = np.concatenate([rhs_E, lhs_E])[np.argsort(end_2E, kind="stable")]
    degree_N = np.bincount(end_2E, minlength=num_entities)
    begin_N = np.cumsum(degree_N) - degree_N
    length_N = degree_N.copy()
    draw = np.random.default_rng(derived(seed, "tune", "peel"))
    order_N = np.full(num_entities, -1, np.int64)
    left_N = np.arange(num_entities)
    num_peeled = k = 0
    while len(left_N):
        k = max(k, int(degree_N[left_N].min()))
        round_N = left_N[degree_N[left_N] <= k]
        while len(round_N):
            order_N[draw.permutation(round_N)] = np.arange(num_peeled, num_peeled + len(round_N))
            num_peeled += len(round_N)
            touched_N = other_2E[ranges(begin_N[round_N], length_N[round_N])]
            touched_N = touched_N[order_N[touched_N] < 0]
            np.subtract.at(degree_N, touched_N, 1)
            touched_N = np.unique(touched_N)
            round_N = touched_N[degree_N[touched_N] <= k]
        left_N = left_N[order_N[left_N] < 0]
    return order_N


class _Graph(Graph):
    """Some partitions of the entities, whose numbers count through all types."""

    def __init__(self, config: Config, buckets: Sequence[Bucket]) -> None:
        keys = sorted(set[PartitionKey]().union(*(keys_of(config, bucket) for bucket in buckets)))
        counts = {name: [0] * config.entities[name].num_partitions for name, _ in keys}
        for name, part in keys:
            counts[name][part] = entity_counts.read_count(config.entity_path, name, part)
        super().__init__(config, counts)
        self.size, self._share = 0, 1.0
        for name, first in self.first.items():
            self.first[name] = first + self.size
            self.size += int(first[-1])
        self._draw_N = np.random.default_rng(derived(config.seed, "tune", "entities")).random(self.size)

    def chosen_rows(self, is_chosen_N: npt.NDArray[np.bool_]) -> tuple[Numbers, dict[str, int]]:
        """Number the chosen entities of each type, and count them. [N]"""
        row_N = np.zeros(self.size, np.int64)
        counts = dict.fromkeys(self.config.entities, 0)
        for name, first in self.first.items():
            own = slice(int(first[0]), int(first[-1]))
            row_N[own] = np.cumsum(is_chosen_N[own]) - 1
            counts[name] = int(is_chosen_N[own].sum())
        return row_N, counts

    def read_all(self, paths: Sequence[str], buckets: Sequence[Bucket], most: int | None = None) -> Triples:
        """Read the edges of some buckets; of more than `most`, those of fewer entities, now and later."""
        parts: list[Triples] = []
        for piece in starmap(Piece, product(paths, buckets)):
            for edges in self.read(piece):
                parts.append(self._drawn(edges))
                while most is not None and sum(map(len, parts)) > most:
                    self._share *= 0.7  # and half of the edges
                    parts = [self._drawn(Triples.concatenated(parts))]
        return Triples.concatenated(parts)

    def _drawn(self, edges: Triples) -> Triples:
        """The edges between entities of the share that is drawn."""
        if self._share == 1:
            return edges
        return edges[(self._draw_N[edges.lhs] < self._share) & (self._draw_N[edges.rhs] < self._share)]


def _first_buckets(config: Config, most_read: int) -> list[Bucket]:
    """List the buckets of the first partitions, up to so many edges; the first one always."""
    buckets = sorted(all_buckets(config), key=max)
    counts = [edge_buckets.count_all(path, buckets) for path in config.edge_paths]
    num_edges = np.cumsum([sum(count[bucket] for count in counts) for bucket in buckets])
    return buckets[: max(1, int(np.searchsorted(num_edges, most_read, side="right")))]
