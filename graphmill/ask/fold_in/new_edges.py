"""Edges of new ids, and the calls that can score them together.

Shapes: E edges, D dimension, K rows.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch

from graphmill.ask.entities import Numbers
from graphmill.ask.fold_in.frozen import FrozenModel
from graphmill.ask.fold_in.sorting import NONE
from graphmill.ask.relation import Relation
from graphmill.checkpoints import Floats
from graphmill.model import operators
from graphmill.vocab import Side


class NewEdges(NamedTuple):
    """Edges between new ids of one type and known entities.

    The edges of an id stand together. Their order among themselves is part of the result.

    Attributes:
        id_E: position of the new id, ascending.
        relation_E: number of the relation.
        is_rhs_E: whether the new id is the right-hand side.
        known_E: number of the known entity in its type.
        known_ED: its vector.
        weight_E: weight of the edge, float32.
    """

    id_E: Numbers
    relation_E: Numbers
    is_rhs_E: Numbers
    known_E: Numbers
    known_ED: Floats
    weight_E: Floats

    def take(self, rows: Numbers | slice) -> "NewEdges":
        """Select some edges."""
        return NewEdges(*(column[rows] for column in self))  # type: ignore[arg-type]

    def of_ids(self, start: int, stop: int) -> "NewEdges":
        """Select the edges of the ids start..stop, whose positions then count from `start`."""
        some = self.take(slice(*np.searchsorted(self.id_E, [start, stop]).tolist()))
        return some._replace(id_E=some.id_E - start)


def parted(
    id_K: Numbers, relation_K: Numbers, is_rhs_K: Numbers, known_K: Numbers, weight_K: Floats
) -> tuple[NewEdges, NewEdges]:
    """Part rows, by ascending id, into edges with a known end, and mentions; neither has vectors.

    A mention says on which side of a relation an id stands, for the prior of an id without edges.
    """
    rows = NewEdges(id_K, relation_K, is_rhs_K, known_K, np.empty((len(id_K), 0), np.float32), weight_K)
    return rows.take(known_K != NONE), rows.take((known_K == NONE) & (relation_K != NONE))


def parted_rows(rows: pa.Table) -> tuple[pa.Array, NewEdges, NewEdges]:
    """Part rows of `sorting.first_edges`; return their ids too, which ascend."""
    encoded = rows["id"].combine_chunks().dictionary_encode()
    columns = encoded.indices, rows["relation"], rows["is_rhs"], rows["known"]
    id_K, relation_K, is_rhs_K, known_K = (np.asarray(column).astype(np.int64) for column in columns)
    return encoded.dictionary, *parted(id_K, relation_K, is_rhs_K, known_K, rows["weight"].to_numpy())


def side_of(is_rhs: int) -> Side:
    """The side of a new id."""
    return Side.RHS if is_rhs else Side.LHS


def groups(model: FrozenModel, relation_E: Numbers, is_rhs_E: Numbers) -> list[Numbers]:
    """Cut edges into groups that one call can score: rows of each group, ascending.

    A group has one side. It has one relation, or several that join the same types by vectors of parameters.
    """
    key_of = {number: _group_key(model, number) for number in np.unique(relation_E).tolist()}
    numbers = np.array(sorted(key_of), np.int64)
    keys = np.array([key_of[number] for number in numbers.tolist()], np.int64)
    group_E = keys[np.searchsorted(numbers, relation_E)] * 2 + is_rhs_E
    return [np.flatnonzero(group_E == group) for group in np.unique(group_E).tolist()]


def relation_of_rows(model: FrozenModel, relation_E: Numbers) -> Relation:
    """The relation of a group's edges, with a row of each parameter for each edge if it has several."""
    first = model.relation(int(relation_E[0]))
    if not _is_stacked(first) or not any(first.transforms.values()):
        return first
    numbers, inverse = np.unique(relation_E, return_inverse=True)
    row_E = torch.from_numpy(inverse)
    relations = [model.relation(number) for number in numbers.tolist()]
    transforms = {
        side: [
            torch.stack([relation.transforms[side][place] for relation in relations])[row_E]
            for place in range(len(own))
        ]
        for side, own in first.transforms.items()
    }
    return replace(first, transforms=transforms)


def _is_stacked(relation: Relation) -> bool:
    """Tell whether one call can score edges of several such relations, each with a row of the parameters."""
    if not operators.operator_of(relation.operator).takes_rows:
        return False
    own = [parameter for parameters in relation.transforms.values() for parameter in parameters]
    return not own or (relation.is_two_sided and all(parameter.ndim == 1 for parameter in own))


def _group_key(model: FrozenModel, number: int) -> int:
    """The first relation that one call can score together with this one."""
    relation = model.relation(number)
    if not _is_stacked(relation):
        return number
    if relation.is_dynamic:
        return -1  # apart from the first relation, as all of them have one
    entries = model.config.relations
    like = [(entry.operator, entry.lhs, entry.rhs, entry.all_negs) for entry in entries]
    return like.index(like[number])
