"""Edges of a bucket: reading, checks, the held-out share, and batches.

With static relations, a batch has one relation, and the operator applies to whole matrices. With dynamic
relations, a batch has edges of any relation. Several batches of a relation travel together, each for its own
step: the compiled step is as fast as the Python around it. With softmax, edges of relations with all_negs
become batches of queries.

Shapes: E edges of the bucket's chunk, B edges of a batch.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import partial
from itertools import starmap
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from graphmill.config import Config, PbgConfig
from graphmill.config.partitions import type_there
from graphmill.errors import FormatError
from graphmill.formats import edge_buckets
from graphmill.formats.edge_buckets import Edges, NewArray
from graphmill.formats.edge_buckets.features import Indices, empty_lists
from graphmill.formats.edge_buckets.files import EDGES
from graphmill.run import seeds
from graphmill.vocab import Bucket, Side
from train.edges.candidates import NumRows, by_sample
from train.edges.negative_sampling import Batch, popularity
from train.edges.one_vs_all import QueryBatch, group_by_query, has_queries
from train.edges.own_rows import NO_BLOCKS, BlockRows, OwnRows
from train.model.features import Bags, distinct


class Role(IntEnum):
    """The purpose of an edge of a delta (train/step/delta.py)."""

    REPLAYED = 0
    ADDED = 1
    REMOVED = 2
    KNOWN = 3


TRAINED = Role.REPLAYED, Role.ADDED
SPAN_EDGES = 16_384  # edges of the batches that go together
NUM_SPANS = 16  # least number of spans of equal length, so that threads end together


@dataclass(frozen=True, eq=False)
class EdgeTensors:
    """Edges of a bucket as tensors [E]."""

    lhs: Tensor  # int32 where the entities of a partition fit
    rel: Tensor
    rhs: Tensor
    weight: Tensor | None  # weight of the edge times that of its relation; None: all are 1
    # Of each side and type: lists of features, numbered by lhs or rhs; running sums of how often to draw.
    bags: Mapping[tuple[Side, str], Bags] = field(default_factory=dict)
    popularity: Mapping[tuple[Side, str], Tensor] = field(default_factory=dict)
    role: Tensor | None = None  # int8, of a delta
    is_held_out: Tensor | None = None  # bool; None: none is

    def __len__(self) -> int:
        return len(self.lhs)

    def has_role(self, *roles: Role) -> Tensor:
        """Mask of the edges of a delta with one of these roles, [E]."""
        assert self.role is not None
        return torch.stack([self.role == role for role in roles]).any(0)

    def of_role(self, *roles: Role) -> "EdgeTensors":
        """Select the edges of a delta that have one of these roles."""
        return self[torch.nonzero(self.has_role(*roles))[:, 0]]

    @property
    def num_trained(self) -> int:
        """Number of edges whose loss is trained."""
        return len(self) if self.role is None else int(self.has_role(*TRAINED).sum())

    @property
    def index(self) -> dict[Side, Tensor]:
        """The entities of both sides, int64: torch takes no other index everywhere."""
        return {Side.LHS: self.lhs.long(), Side.RHS: self.rhs.long()}

    @property
    def weights(self) -> Tensor:
        """The weight of every edge."""
        return torch.ones(len(self), device=self.lhs.device) if self.weight is None else self.weight

    def __getitem__(self, rows: Tensor | slice) -> "EdgeTensors":
        def chosen(values: Tensor) -> Tensor:  # index_select takes a quarter of the time of indexing
            return values[rows] if isinstance(rows, slice) else values.index_select(0, rows)

        lhs, rel, rhs = map(chosen, (self.lhs, self.rel, self.rhs))
        optional = (self.weight, self.role, self.is_held_out)
        weight, role, is_held_out = (None if column is None else chosen(column) for column in optional)
        return EdgeTensors(lhs, rel, rhs, weight, self.bags, self.popularity, role, is_held_out)


def read(
    config: Config,
    edge_path: str,
    bucket: Bucket,
    rows: tuple[int, int],
    num_rows: Mapping[Side, list[int]],
    num_rel: int,
    device: torch.device,
    new: NewArray = np.empty,
    kind: str = EDGES,
) -> EdgeTensors:
    """Read the edges `rows` = (first, past the last) of a bucket.

    `num_rows` lists, for each of config.relations, the rows of its partition in this bucket. `new` makes the
    arrays that are copied to the device; copies from pinned memory may end later, with the current stream.
    """
    limits = num_rows[Side.LHS], num_rows[Side.RHS], num_rel
    dtype = np.int32 if max(*limits[0], *limits[1], num_rel) <= np.iinfo(np.int32).max else np.int64
    edges = edge_buckets.read_bucket(
        edge_path, bucket, *rows, takes_features=True, index_dtype=dtype, new=new, kind=kind
    )
    uri = edge_buckets.bucket_uri(edge_path, bucket, kind)
    edge_buckets.check_indices(edges, uri, *limits, rows[0], partial(type_there, config))
    relation_E = np.zeros_like(edges.rel) if config.dynamic_relations else edges.rel
    index, bags = {}, {}
    for side in Side:
        index[side] = torch.from_numpy(getattr(edges, side))
        for name, chosen in _featurized(config, relation_E, side):
            if len(wrong := chosen[getattr(edges, side)[chosen] >= 0]):
                raise FormatError(
                    f"{uri}: {side}[{rows[0] + wrong[0]}] is {getattr(edges, side)[wrong[0]]}, expected -1 "
                    f"and a list of features: the type {name!r} is featurized"
                )
            lists = edges.features(side) or empty_lists(len(edges))
            bags[side, name], numbers = distinct(lists, chosen)
            index[side][torch.from_numpy(chosen)] = numbers.to(index[side].dtype)
        if edges.features(side) is not None and len(edges) and int(index[side].min()) < 0:
            row = int(index[side].argmin())
            name = config.relations[int(relation_E[row])].entity_type(side)
            raise FormatError(
                f"{uri}: {side}[{rows[0] + row}] has a list of features, and its type {name!r} is not "
                f"featurized; set entities.{name}.featurized, or run etl again"
            )
    weight = _weight(config, edges, relation_E)  # those of the file are checked already
    if weight is not None and weight is not edges.weight:
        edge_buckets.check_weights(weight, uri, rows[0], " times its relation's weight")
    columns = index[Side.LHS], torch.from_numpy(edges.rel), index[Side.RHS]
    marks: npt.NDArray[np.bool_] | None = None
    if config.eval_fraction:  # then no epoch trains these edges
        seed = seeds.derived(config.seed, "held out", *bucket)
        marks = seeds.held_out(tuple(column.numpy() for column in columns), config.eval_fraction, seed)
    lhs, rel, rhs = (column.to(device, non_blocking=True) for column in columns)
    weight_E, is_held_out_E = (
        None if array is None else torch.from_numpy(array).to(device, non_blocking=True)
        for array in (weight, marks)
    )
    bags = {key: bag.to(device) for key, bag in bags.items()}
    return EdgeTensors(lhs, rel, rhs, weight_E, bags, is_held_out=is_held_out_E)


def joined(parts: Iterable[EdgeTensors], num: int) -> EdgeTensors:
    """Join edges, `num` in all, of which one part is in memory beside the result; no side is featurized."""
    columns: dict[str, Any] = {}
    done = 0
    for part in parts:
        own = slice(done, done := done + len(part))
        for name, column in vars(part).items():
            if isinstance(column, Tensor):
                if name not in columns:  # in parts without weights all are 1
                    columns[name] = column.new_ones(num) if name == "weight" else column.new_empty(num)
                columns[name][own] = column
    return EdgeTensors(**{"weight": None} | columns)


def _weight(config: PbgConfig, edges: Edges, relation_E: Indices) -> npt.NDArray[np.float32] | None:
    """Multiply the weights of edges with those of their relations; None where all are 1."""
    of_relation = np.array([relation.weight for relation in config.relations], np.float32)
    weight = edges.weight
    if (of_relation != 1).any():
        weight = of_relation[relation_E] if weight is None else weight * of_relation[relation_E]
    return None if weight is None or (weight == 1).all() else weight


def _featurized(config: PbgConfig, relation_E: Indices, side: Side) -> Iterator[tuple[str, Indices]]:
    types = [relation.entity_type(side) for relation in config.relations]
    for name in dict.fromkeys(types):
        if config.entities[name].featurized:
            chosen = np.flatnonzero(np.array([other == name for other in types])[relation_E])
            if len(chosen):
                yield name, chosen


def split(edges: EdgeTensors, generator: torch.Generator) -> tuple[EdgeTensors, EdgeTensors]:
    """Split edges into those to train on and those held out, which come in random order.

    Of a delta, added edges are held out. Copies of them that would be replayed are left out.
    """
    held_E = edges.is_held_out
    if held_E is None:
        return edges, edges[:0]
    kept_E = ~held_E
    if edges.role is not None:
        kept_E |= ~edges.has_role(*TRAINED)
        held_E = held_E & edges.has_role(Role.ADDED)
    held = torch.nonzero(held_E)[:, 0]
    held = held[torch.randperm(len(held), generator=generator).to(held.device)]
    return edges[torch.nonzero(kept_E)[:, 0]], edges[held]


def cut(
    config: Config, edges: EdgeTensors, generator: torch.Generator, blocks: BlockRows = NO_BLOCKS
) -> Iterator[Batch]:
    """Cut edges in random order into batches of at most batch_size, of one pair of `blocks` each."""
    pieces = cut_for_training(config, edges, generator, None, None, blocks)
    return (piece for piece in pieces if isinstance(piece, Batch))


def cut_for_training(
    config: Config,
    edges: EdgeTensors,
    generator: torch.Generator,
    num_rows: NumRows | None,
    known: EdgeTensors | None = None,
    blocks: BlockRows = NO_BLOCKS,
) -> Iterator[Batch | QueryBatch]:
    """Cut edges in random order into batches of at most batch_size; into batches of queries where possible.

    `num_rows` lists, for each of config.relations, the rows of its table; None: edges alone, with uniform
    negatives. `known` are edges that are not trained, and whose ends are no wrong answers to queries of the
    others. A batch has edges of one pair of `blocks`.
    """
    power = config.train.negative_power
    if power and config.num_uniform_negs and num_rows is not None:
        edges = replace(edges, popularity=_popularity(config, edges, num_rows, power))
    asked = num_rows if has_queries(config) else None
    of_known = None if known is None else (known.index, known.rel.long())  # once for all relations
    order_E = torch.randperm(len(edges), generator=generator).to(edges.lhs.device)
    is_asked = [asked is not None and relation.all_negs for relation in config.relations]
    if is_asked == [False] and not blocks.stops:
        edges = edges[order_E]  # all at once, while no other thread uses the cores
        for span, num_steps in _spans(0, len(order_E), config.batch_size, _most_steps(config, 0)):
            yield _batch(config, 0, {}, edges, span, num_steps)
        return
    kind_E, num_pairs = blocks.kinds(config, edges.lhs, edges.rel, edges.rhs), len(blocks.pairs)
    counts_RP = torch.bincount(kind_E, minlength=len(config.relations) * num_pairs).view(-1, num_pairs)
    # a stable sort keeps the random order within a relation; only the result is gathered, once
    edges = edges[order_E[torch.sort(kind_E[order_E], stable=True).indices]]
    sources: list[Iterator[Batch | QueryBatch]] = []
    order: list[int] = []  # each source as often as it has batches
    stop = 0
    for relation, counts in enumerate(counts_RP.tolist()):
        if asked is not None and is_asked[relation]:
            own = edges[stop : (stop := stop + sum(counts))]
            rel_E = own.rel.long() if config.dynamic_relations else None
            groups = group_by_query(config, relation, own.index, rel_E, own.weights)
            if of_known is not None:
                groups = [group.with_known(*of_known) for group in groups]
            for group, chosen_Q, compared in by_sample(config, groups, asked, blocks):
                order += [len(sources)] * -(-len(chosen_Q) // config.batch_size)
                sources.append(group.cut(chosen_Q, config.batch_size, generator, **compared))
            continue
        for pair, count in zip(blocks.pairs, counts, strict=True):
            start, stop = stop, stop + count
            spans = list(_spans(start, stop, config.batch_size, _most_steps(config, relation)))
            order += [len(sources)] * len(spans)
            own_rows = blocks.own_rows(config.relations[relation], pair)
            sources.append(starmap(partial(_batch, config, relation, own_rows, edges), spans))
    for number in torch.randperm(len(order), generator=generator).tolist():
        yield next(sources[order[number]])


def _most_steps(config: PbgConfig, relation: int) -> int:
    """Batches that go together at most; with all_negs each holds a list of all entities."""
    return 1 if config.relations[relation].all_negs else SPAN_EDGES // config.batch_size


def _spans(start: int, end: int, batch_size: int, most: int) -> Iterator[tuple[slice, int]]:
    """Yield spans of at most `most` whole batches, shorter towards the end, and their numbers of batches."""
    while start < end:
        left = end - start
        num_steps = max(1, min(left // (NUM_SPANS * batch_size), most))
        stop = start + min(num_steps * batch_size, left)
        yield slice(start, stop), num_steps
        start = stop


def _batch(
    config: PbgConfig,
    relation: int,
    own_rows: Mapping[Side, OwnRows],
    edges: EdgeTensors,
    rows: slice,
    num_steps: int = 1,
) -> Batch:
    own = edges[rows]
    keys = {side: (side, config.relations[relation].entity_type(side)) for side in Side}
    return Batch(
        relation,
        own.index,
        own.rel.long() if config.dynamic_relations else None,
        own.weights,
        bags={side: own.bags[key] for side, key in keys.items() if key in own.bags},
        popularity={side: own.popularity[key] for side, key in keys.items() if key in own.popularity},
        own_rows=own_rows,
        num_steps=num_steps,
    )


def _popularity(
    config: PbgConfig, edges: EdgeTensors, num_rows: NumRows, power: float
) -> dict[tuple[Side, str], Tensor]:
    relation_E = torch.zeros_like(edges.rel) if config.dynamic_relations else edges.rel
    sums = {}
    for side in Side:
        types = [relation.entity_type(side) for relation in config.relations]
        for name in dict.fromkeys(types):
            own_E = torch.tensor([other == name for other in types], device=edges.rel.device)[relation_E]
            bags = edges.bags.get((side, name))
            num = num_rows[side][types.index(name)] if bags is None else len(bags)
            sums[side, name] = popularity(getattr(edges, side)[own_E], num, power)
    return sums
