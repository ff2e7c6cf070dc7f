"""Parameters of operators in the layout of the kernels: tables with one row per relation, one per side.

Relations of one operator and dimension share their tables, so that one captured step serves all of them.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from graphmill.ask.model import Model
from graphmill.config import Config
from graphmill.vocab import Side
from train.model.optimizer import Adagrad


class OperatorRows:
    """A copy of operators' parameters, at an address that never changes.

    Attributes:
        values_SRD, sums_SRD: parameters and their sums, for queries of each side or, of S = 1, of both; None
            for operators without parameters.
    """

    def __init__(self, model: Model, adagrad: Adagrad, relations: Sequence[int]) -> None:
        """Static relations have one row each, dynamic ones all rows."""
        self._model, self._adagrad = model, adagrad
        # The query for one side is made of the other side's entities, by the other side's operator.
        sides = (Side.RHS, Side.LHS) if model.two_sided else (Side.RHS,)
        self._keys = {each: [model.operator_keys(each, side) for side in sides] for each in relations}
        self.values_SRD: Tensor | None = None
        self.sums_SRD: Tensor | None = None
        last = max(relations)
        if parameters := [model.parameters[key] for key in self._keys[last][0]]:
            num_rows = last + parameters[0].numel() // parameters[0].shape[-1]
            dimension = sum(each.shape[-1] for each in parameters)
            self.values_SRD = parameters[0].new_zeros(len(sides), num_rows, dimension)
            self.sums_SRD = torch.zeros_like(self.values_SRD)

    def of_queries(self, side: int) -> Tensor | None:
        """Give the parameters for the queries of a side, [R, D]."""
        return None if self.values_SRD is None else self.values_SRD[side % len(self.values_SRD)]

    def rows(self, rel_T: Tensor) -> Tensor:
        """Number rows of all sides in one table: those of the edges' relations, side by side, [S T]."""
        assert self.values_SRD is not None
        num_sides, num_rows, _ = self.values_SRD.shape
        return torch.cat([rel_T + side * num_rows for side in range(num_sides)])

    def load(self, relation: int) -> None:
        """Copy a relation's parameters from the model."""
        for own_RD, parameter_RD in self._pairs(relation):
            own_RD.copy_(parameter_RD)

    def write_back(self, relation: int, num_steps: int) -> None:
        """Copy a relation's parameters into the model."""
        for own_RD, parameter_RD in self._pairs(relation):
            parameter_RD.copy_(own_RD)
        for keys in self._keys[relation]:
            for key in keys:
                if key not in self._adagrad.frozen:
                    self._adagrad.steps[key] += num_steps

    def _pairs(self, relation: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield rows here, and what they copy."""
        targets: list[tuple[Tensor | None, Mapping[str, Tensor]]] = [
            (self.values_SRD, self._model.parameters),
            (self.sums_SRD, self._adagrad.sums),
        ]
        for own_SRD, target in targets:
            if own_SRD is None:
                continue
            for own_RD, keys in zip(own_SRD, self._keys[relation], strict=True):
                for key, part_RD in zip(keys, own_RD.chunk(len(keys), dim=1), strict=True):
                    parameter_RD = target[key].view(-1, part_RD.shape[1])
                    yield part_RD[relation : relation + len(parameter_RD)], parameter_RD


def operator_rows(config: Config, model: Model, adagrad: Adagrad) -> list[OperatorRows]:
    """Make the parameters of all relations: for each relation its rows, which it may share."""
    kinds: dict[tuple[str, int], list[int]] = {}
    for number, relation in enumerate(config.relations):
        kind = relation.operator, config.entity_dimension(relation.rhs)
        kinds.setdefault(kind, []).append(number)
    rows = {
        number: own
        for numbers in kinds.values()
        for own in [OperatorRows(model, adagrad, numbers)]
        for number in numbers
    }
    return [rows[number] for number in range(len(config.relations))]
