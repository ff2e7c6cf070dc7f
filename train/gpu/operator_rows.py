"""Parameters of operators in the layout of the kernels: tables with one row per relation.

Relations of one operator and dimension share their tables, so that one captured step serves all of them.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from graphmill.config import Config
from graphmill.vocab import Side
from train.model.model import Model
from train.model.optimizer import Adagrad


class OperatorRows:
    """A copy of operators' parameters on one side, at an address that never changes.

    Attributes:
        values_RD, sums_RD: parameters and their sums; None for operators without parameters.
    """

    def __init__(self, model: Model, adagrad: Adagrad, keys: Mapping[int, tuple[str, ...]]) -> None:
        """`keys` are those of each relation; static relations have one row each, dynamic ones all rows."""
        self._model, self._adagrad, self._keys = model, adagrad, keys
        self.values_RD: Tensor | None = None
        self.sums_RD: Tensor | None = None
        last = max(keys)
        if parameters := [model.parameters[key] for key in keys[last]]:
            num_rows = last + parameters[0].numel() // parameters[0].shape[-1]
            self.values_RD = parameters[0].new_zeros(num_rows, sum(each.shape[-1] for each in parameters))
            self.sums_RD = torch.zeros_like(self.values_RD)

    def load(self, relation: int) -> None:
        """Copy a relation's parameters from the model."""
        for own_RD, parameter_RD in self._pairs(relation):
            own_RD.copy_(parameter_RD)

    def write_back(self, relation: int, num_steps: int) -> None:
        """Copy a relation's parameters into the model."""
        for own_RD, parameter_RD in self._pairs(relation):
            parameter_RD.copy_(own_RD)
        for key in self._keys[relation]:
            if key not in self._adagrad.frozen:
                self._adagrad.steps[key] += num_steps

    def _pairs(self, relation: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield rows here, and what they copy."""
        keys = self._keys[relation]
        targets = ((self.values_RD, self._model.parameters), (self.sums_RD, self._adagrad.sums))
        for own_RD, target in targets:
            if own_RD is None:
                continue
            for key, part_RD in zip(keys, own_RD.chunk(len(keys), dim=1), strict=True):
                parameter_RD = target[key].view(-1, part_RD.shape[1])
                yield part_RD[relation : relation + len(parameter_RD)], parameter_RD


class Operators:
    """The parameters of all relations."""

    def __init__(self, config: Config, model: Model, adagrad: Adagrad) -> None:
        kinds: dict[tuple[str, int], list[int]] = {}
        for number, relation in enumerate(config.relations):
            kind = relation.operator, config.entity_dimension(relation.rhs)
            kinds.setdefault(kind, []).append(number)
        self._rows: dict[int, tuple[OperatorRows, OperatorRows]] = {}
        for numbers in kinds.values():
            lhs, rhs = (
                OperatorRows(
                    model, adagrad, {number: model.operator_keys(number, side) for number in numbers}
                )
                for side in Side
            )
            # The query for one side is made of the other side's entities, by the other side's operator.
            pair = (rhs, lhs) if model.two_sided else (rhs, rhs)
            self._rows |= dict.fromkeys(numbers, pair)

    def __getitem__(self, relation: int) -> tuple[OperatorRows, OperatorRows]:
        """Rows for the queries of lhs and of rhs: maybe one object for both."""
        return self._rows[relation]

    def load(self, relation: int) -> None:
        """Copy a relation's parameters from the model."""
        for each in dict.fromkeys(self[relation]):
            each.load(relation)

    def write_back(self, relation: int, num_steps: int) -> None:
        """Copy a relation's parameters into the model."""
        for each in dict.fromkeys(self[relation]):
            each.write_back(relation, num_steps)
