"""Relations for looking things up: what a relation makes of vectors, and the score of the model.

Source: docs/formats/pbg_v1.md. Shapes: D dimension, N vectors.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from graphmill.checkpoints import open_checkpoint
from graphmill.config import Config
from graphmill.errors import ConfigError
from graphmill.formats import entity_counts
from graphmill.library.nearest import Neighbor, unit
from graphmill.vocab import Side
from remap.neighbors.neighbors import Score, find_id, nearest
from remap.neighbors.vectors import Floats, find_types


class Relation:
    """One relation of a trained model, asked about one of its sides."""

    def __init__(self, config: Config, name: str) -> None:
        if config.bias:
            raise ConfigError("--relation: a model with bias cannot be asked")
        self.config = config
        self.row: int | None = None
        if config.dynamic_relations:
            names = entity_counts.read_relation_names(config.entity_path) or []
            self.number, self.row = 0, names.index(name) if name in names else None
            is_known, known = name in names, names
        else:
            known = [relation.name for relation in config.relations]
            is_known, self.number = name in known, known.index(name) if name in known else 0
        if not is_known:
            some = ", ".join(known[:10]) + (", ..." if len(known) > 10 else "")
            raise ConfigError(f"--relation {name}: expected one of {some}")
        self.relation = config.relations[self.number]
        model = open_checkpoint(config.checkpoint_path, allow_non_finite=True).read_model()
        self.parameters = {key: value.numpy() for key, value in (model.parameters if model else {}).items()}

    def score(self, side: Side, vector_D: Floats) -> Score:
        """How well vectors of `side` complete the edge whose other end is `vector_D`.

        A static relation transforms the right-hand side, a dynamic one the end that is known.
        """
        if self._has_both_sides():
            query_D = self._apply(side.other, vector_D[None])[0]
            return lambda rows_ND: self._compare(query_D, rows_ND)
        if side is Side.LHS:
            query_D = self._apply(Side.RHS, vector_D[None])[0]
            return lambda rows_ND: self._compare(query_D, rows_ND)
        return lambda rows_ND: self._compare(vector_D, self._apply(Side.RHS, rows_ND))

    def _has_both_sides(self) -> bool:
        return any(key.startswith(f"{Side.LHS}_operators.{self.number}.") for key in self.parameters)

    def _compare(self, query_D: Floats, rows_ND: Floats) -> Floats:
        if self.config.comparator == "cos":
            return np.asarray(unit(rows_ND) @ unit(query_D[None])[0])
        if self.config.comparator == "dot":
            return np.asarray(rows_ND @ query_D)
        square_N = np.square(rows_ND - query_D).sum(1)
        return np.asarray(-square_N if self.config.comparator == "squared_l2" else -np.sqrt(square_N))

    def _apply(self, side: Side, rows_ND: Floats) -> Floats:
        prefix = f"{side}_operators.{self.number}."
        own: dict[str, Any] = {
            key.removeprefix(prefix).removesuffix("s"): value if self.row is None else value[self.row]
            for key, value in self.parameters.items()
            if key.startswith(prefix)
        }
        return transformed(self.relation.operator, own, rows_ND)


def along_relation(
    config: Config, folder: str, raw_id: str, k: int, name: str, inverse: bool
) -> tuple[str, list[Neighbor]]:
    """The type that a relation leads to (or comes from), and its `k` entities that score best with an id.

    Raises:
        ConfigError: there is no such relation, or it cannot be asked.
        NotFoundError: the type that it starts from has no such id.
    """
    relation = Relation(config, name)
    side = Side.LHS if inverse else Side.RHS
    tables = find_types(folder)
    found = find_id(tables, raw_id, relation.relation.entity_type(side.other))
    wanted = relation.relation.entity_type(side)
    leave_out = raw_id if wanted == found.entity_type else None
    return wanted, nearest(tables.get(wanted, []), relation.score(side, found.vector_D), leave_out, k)


def transformed(operator: str, own: Mapping[str, Any], rows_ND: Floats) -> Floats:
    """Vectors as the relation's operator leaves them, [N, D]."""
    match operator:
        case "none":
            return rows_ND
        case "diagonal":
            return np.asarray(rows_ND * own["diagonal"])
        case "translation":
            return np.asarray(rows_ND + own["translation"])
        case "linear":
            return np.asarray(rows_ND @ own["linear_transformation"].T)
        case "affine":
            return np.asarray(rows_ND @ own["linear_transformation"].T + own["translation"])
    half = rows_ND.shape[1] // 2
    factor = np.exp(1j * own["angle"]) if operator == "rotation" else own["real"] + 1j * own["imag"]
    product = (rows_ND[:, :half] + 1j * rows_ND[:, half:]) * factor
    return np.concatenate([product.real, product.imag], 1).astype(np.float32)
