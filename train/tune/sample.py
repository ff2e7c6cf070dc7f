"""The tuner's graph: the densest part of the training edges, in one partition, and edges to validate on.

Entities are peeled off, those with the fewest edges first, until few enough edges are left. What is left of
any graph is a k-core, or lies between two: of a tree it is a smaller tree. Shapes: N entities, E edges.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from graphmill import storage
from graphmill.config import Config
from graphmill.config.partitions import PartitionKey, all_buckets, key_of, keys_of
from graphmill.errors import ConfigError
from graphmill.formats import edge_buckets, entity_counts
from graphmill.formats.edge_buckets import Edges
from graphmill.formats.murmur import hash_edges, hash_numbers
from graphmill.run.seeds import derived, held_out
from graphmill.sorted_arrays import distinct
from graphmill.vocab import TRAIN_SPLIT, Bucket, Side

Numbers = npt.NDArray[np.int64]

VALID_SPLIT = "valid"
FEW_VALID_EDGES = 500
_HELD_OUT = 0.05
MOST_READ = 1 << 24
_MOST_VALID = 5000


@dataclass(frozen=True)
class Sample:
    """Sizes of the tuner's graph."""

    num_entities: dict[str, int]
    num_edges: int
    num_valid: int
    is_held_out: bool
    """Whether the validation edges were taken from the training edges."""


@dataclass(frozen=True, eq=False)
class SampledGraph:
    """Edges whose entities are numbered over all types and partitions."""

    lhs: Numbers
    rel: Numbers
    rhs: Numbers
    weight: npt.NDArray[np.float32] | None

    @property
    def columns(self) -> tuple[Numbers, Numbers, Numbers]:
        """lhs, rel, rhs."""
        return self.lhs, self.rel, self.rhs

    def __getitem__(self, rows: npt.NDArray[np.generic]) -> "SampledGraph":
        weight = None if self.weight is None else self.weight[rows]
        return SampledGraph(self.lhs[rows], self.rel[rows], self.rhs[rows], weight)


def write_sample(
    config: Config, target: str, split: str, most_edges: int, most_read: int = MOST_READ
) -> Sample:
    """Write the tuner's graph into `target`; above `most_read` edges, from the first partitions alone."""
    buckets = _first_buckets(config, most_read)
    numbering = _Numbering(config, buckets)
    graph = _read(config, numbering, config.edge_paths, buckets)
    if len(graph.rel) < FEW_VALID_EDGES:
        raise ConfigError(f"{config.edge_paths[0]}: {len(graph.rel)} edges are too few to tune with")
    is_chosen_N = densest(graph.lhs, graph.rhs, numbering.size, most_edges, config.seed)
    graph = graph[is_chosen_N[graph.lhs] & is_chosen_N[graph.rhs]]
    path = config.split_path(split)
    valid = _read(config, numbering, [path] if storage.is_dir(path) else [], buckets)
    valid = valid[is_chosen_N[valid.lhs] & is_chosen_N[valid.rhs]]
    seed = derived(config.seed, "tune", "valid")
    is_held_out = len(valid.rel) < FEW_VALID_EDGES
    if is_held_out:
        is_valid_E = _drawn_for_validation(config, graph, seed)
        graph, valid = graph[~is_valid_E], graph[is_valid_E]
    drawn = np.random.default_rng(seed).permutation(len(valid.rel))[:_MOST_VALID]
    valid = valid[np.sort(drawn)]
    row_N, counts = numbering.rows(is_chosen_N)
    entities = storage.join(target, "entities")
    for name, count in counts.items():
        entity_counts.write_count(entities, name, 0, count)
    if config.dynamic_relations:
        entity_counts.write_relation_count(entities, entity_counts.read_relation_count(config.entity_path))
    for name, edges in ((TRAIN_SPLIT, graph), (VALID_SPLIT, valid)):
        rows = Edges(row_N[edges.lhs], edges.rel, row_N[edges.rhs], edges.weight)
        edge_buckets.write_bucket(storage.join(target, "edges", name), Bucket(0, 0), rows)
    return Sample(counts, len(graph.rel), len(valid.rel), is_held_out)


def _drawn_for_validation(config: Config, graph: SampledGraph, seed: int) -> npt.NDArray[np.bool_]:
    """Draw edges to be held out: some different ones, with all their copies. [E]"""
    num_distinct = len(distinct(hash_edges(*(hash_numbers(column, 0) for column in graph.columns))))
    num = min(max(FEW_VALID_EDGES, int(_HELD_OUT * num_distinct)), _MOST_VALID, num_distinct // 2)
    is_valid_E = held_out(graph.columns, num / max(num_distinct, 1), seed)
    if is_valid_E.all() or not is_valid_E.any():
        raise ConfigError(f"{config.edge_paths[0]}: {num_distinct} different edges are too few to tune with")
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
            touched_N = other_2E[_ranges(begin_N[round_N], length_N[round_N])]
            touched_N = touched_N[order_N[touched_N] < 0]
            np.subtract.at(degree_N, touched_N, 1)
            touched_N = np.unique(touched_N)
            round_N = touched_N[degree_N[touched_N] <= k]
        left_N = left_N[order_N[left_N] < 0]
    return order_N


def _ranges(begin: Numbers, length: Numbers) -> Numbers:
    """Concatenate begin..begin + length of each pair."""
    found: Numbers = np.arange(length.sum()) + np.repeat(begin - (np.cumsum(length) - length), length)
    return found


class _Numbering:
    """Numbers of entities over all types and partitions of some buckets."""

    def __init__(self, config: Config, buckets: Sequence[Bucket]) -> None:
        self._types = list(config.entities)
        self._first: dict[PartitionKey, int] = {}
        self._counts: dict[PartitionKey, int] = {}
        self.size = 0
        for key in sorted(set[PartitionKey]().union(*(keys_of(config, bucket) for bucket in buckets))):
            self._first[key] = self.size
            self._counts[key] = entity_counts.read_count(config.entity_path, *key)
            self.size += self._counts[key]

    def of(self, config: Config, side: Side, bucket: Bucket, edges: Edges) -> Numbers:
        """Number the ends of edges on one side."""
        first_R = np.array(
            [
                self._first[key_of(config, relation.entity_type(side), side, bucket)]
                for relation in config.relations
            ]
        )
        relation_E = np.zeros_like(edges.rel) if config.dynamic_relations else edges.rel
        found: Numbers = getattr(edges, side) + first_R[relation_E]
        return found

    def rows(self, is_chosen_N: npt.NDArray[np.bool_]) -> tuple[Numbers, dict[str, int]]:
        """Number the chosen entities of each type, and count them. [N]"""
        row_N = np.zeros(self.size, np.int64)
        counts = dict.fromkeys(self._types, 0)
        for key, first in self._first.items():
            own = slice(first, first + self._counts[key])
            row_N[own] = np.cumsum(is_chosen_N[own]) - 1 + counts[key[0]]
            counts[key[0]] += int(is_chosen_N[own].sum())
        return row_N, counts


def _first_buckets(config: Config, most_read: int) -> list[Bucket]:
    """List the buckets of the first partitions, up to so many edges; the first one always."""
    buckets = sorted(all_buckets(config), key=max)
    counts = [edge_buckets.count_all(path, buckets) for path in config.edge_paths]
    num_edges = np.cumsum([sum(count[bucket] for count in counts) for bucket in buckets])
    return buckets[: max(1, int(np.searchsorted(num_edges, most_read, side="right")))]


def _read(
    config: Config, numbering: _Numbering, paths: Sequence[str], buckets: Sequence[Bucket]
) -> SampledGraph:
    parts: list[SampledGraph] = []
    for path, bucket in product(paths, buckets):
        edges = edge_buckets.read_bucket(path, bucket)
        lhs, rhs = (numbering.of(config, side, bucket, edges) for side in Side)
        parts.append(SampledGraph(lhs, edges.rel.astype(np.int64), rhs, edges.weight))
    none = np.zeros(0, np.int64)
    weights = [part.weight for part in parts if part.weight is not None]
    return SampledGraph(
        np.concatenate([none, *(each.lhs for each in parts)]),
        np.concatenate([none, *(each.rel for each in parts)]),
        np.concatenate([none, *(each.rhs for each in parts)]),
        np.concatenate(weights) if parts and len(weights) == len(parts) else None,
    )
