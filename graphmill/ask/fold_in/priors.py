"""Priors: what is likely of an id before its edges are seen.

The prior of a type is the mean of its entities, and their standard deviation in each coordinate. The prior of
a side of a relation is the mean of the entities there, drawn towards that of the type as if `SHRINKAGE` edges
were of an average entity.

Shapes: D dimension, N rows, E edges.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from graphmill.ask.fold_in.edge_sample import EdgeSample
from graphmill.ask.table import Numbers
from graphmill.checkpoints import Floats
from graphmill.vocab import Side

SHRINKAGE = 8.0
_LEAST_SHARE = 0.1
_LEAST_SPREAD = 1e-6


@dataclass(frozen=True, eq=False)
class TypePrior:
    """Mean and standard deviation of a type's vectors, [D] each."""

    mean_D: Floats
    spread_D: Floats

    @classmethod
    def of(cls, vectors_ND: Floats) -> "TypePrior":
        """Compute the prior from some vectors of the type."""
        if not len(vectors_ND):
            width = vectors_ND.shape[1]
            return cls(np.zeros(width, np.float32), np.ones(width, np.float32))
        spread_D = vectors_ND.std(0, dtype=np.float64)
        # A coordinate that never varies must not hold the id for ever.
        least = max(float(np.sqrt(np.square(spread_D).mean())) * _LEAST_SHARE, _LEAST_SPREAD)
        return cls(
            vectors_ND.mean(0, dtype=np.float64).astype(np.float32),
            np.maximum(spread_D, least).astype(np.float32),
        )


@dataclass(frozen=True, eq=False)
class RelationPriors:
    """Means of the entities on the sides of relations, less the mean of their type.

    Attributes:
        offsets: by number of the relation and side, [D]; a side without edges in the sample is not there.
    """

    offsets: Mapping[tuple[int, Side], Floats]

    def means(self, relation_E: Numbers, is_rhs_E: Numbers, prior: TypePrior) -> Floats:
        """The means [E, D] of sides of relations, whose type has this prior."""
        keys, inverse = np.unique(relation_E * 2 + is_rhs_E, return_inverse=True)
        means = np.repeat(prior.mean_D[None], len(keys), 0)
        for place, key in enumerate(keys.tolist()):
            offset_D = self.offsets.get((key // 2, Side.RHS if key % 2 else Side.LHS))
            if offset_D is not None:
                means[place] += offset_D
        found: Floats = means[inverse]
        return found


def relation_priors(sample: EdgeSample, priors: Mapping[str, TypePrior]) -> RelationPriors:
    """Compute the priors of the sides of all relations in the sample."""
    offsets: dict[tuple[int, Side], Floats] = {}
    for types, edges in sample.items():
        order = np.argsort(edges.relation_E, kind="stable")
        numbers, first, num = np.unique(edges.relation_E[order], return_index=True, return_counts=True)
        for side, entity_type in zip(Side, types, strict=True):
            if side not in edges.vectors or not len(edges):
                continue
            found_ED = (edges.vectors[side] - priors[entity_type].mean_D)[order].astype(np.float64)
            mean_RD = np.add.reduceat(found_ED, first, axis=0) / (num[:, None] + SHRINKAGE)
            offsets |= {
                (number, side): offset_D.astype(np.float32)
                for number, offset_D in zip(numbers.tolist(), mean_RD, strict=True)
            }
    return RelationPriors(offsets)
