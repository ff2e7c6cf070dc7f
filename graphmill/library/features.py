"""Vectors as columns of a table, for notebooks: `Run.features`.

Shapes: Q ids, U distinct ids, N rows of a batch, D dimension.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphmill.ask.entities import Numbers
from graphmill.ask.features.joined import MOST_SIMILAR, Form, Similar
from graphmill.ask.principal import Components, moments_of
from graphmill.checkpoints import Floats
from graphmill.display.readable import quoted
from graphmill.errors import BadInputError
from graphmill.formats.raw_ids import strings_given

if TYPE_CHECKING:
    from graphmill.library.fold_in import Edge, FoldedId


class VectorsByType(Protocol):
    """Source of features: a `Run`."""

    def dimension(self, entity_type: str) -> int:
        """Length of the type's vectors."""

    def iter_vectors(self, entity_type: str) -> Iterator[tuple[pa.Array, Floats]]:
        """Raw ids and vectors in batches."""

    def find(self, entity_type: str, raw_ids: list[str]) -> dict[str, Floats]:
        """The vectors of some ids that exist."""

    def fold_in(self, edges: "Iterable[Edge] | pa.Table") -> "list[FoldedId]":
        """Vectors of new ids."""


def features(
    run: VectorsByType,
    entity_type: str,
    ids: Iterable[Any] | pa.Array,
    components: int | None,
    similar_to: Sequence[Any] | None,
    as_columns: bool,
    edges: "Iterable[Edge] | pa.Table | None",
) -> pa.Table:
    """Make the table; see `Run.features`."""
    if components is not None and similar_to is not None:
        raise BadInputError("features: expected components or similar_to, found both")
    strings = strings_given(ids, "ids")
    strings = pc.if_else(pc.equal(strings, ""), None, strings)
    encoded = strings.dictionary_encode()
    names = encoded.dictionary
    vectors_UD = np.zeros((len(names), run.dimension(entity_type)), np.float32)
    is_known_U = _find(run, entity_type, names, vectors_UD)
    confidence_U = np.full(len(names), np.nan, np.float32)
    if edges is not None and not is_known_U.all():
        place_of = {name: place for place, name in enumerate(names.to_pylist())}
        for folded in run.fold_in(edges):
            place = place_of.get(folded.id) if folded.type == entity_type else None
            if place is not None:
                vectors_UD[place], confidence_U[place] = folded.embedding, folded.confidence
    made = None if components is None else Components.of(_moments(run, entity_type), components)
    similar = None if similar_to is None else _similar(run, entity_type, similar_to)
    form = Form(run.dimension(entity_type), "", made, similar, as_columns, edges is not None)
    code_Q: Numbers = encoded.indices.fill_null(-1).to_numpy().astype(np.int64)
    has_vector_U = is_known_U | ~np.isnan(confidence_U)
    place_Q = np.where((code_Q >= 0) & np.append(has_vector_U, False)[code_Q], code_Q, -1)
    columns = form.columns(form.values(vectors_UD), place_Q, confidence_U)
    return pa.table([strings, *columns], schema=pa.schema([("id", pa.string()), *form.fields]))


def _find(run: VectorsByType, entity_type: str, names: pa.Array, vectors_UD: Floats) -> Any:
    """Fill in the vectors of ids; return which ids the run knows, [U]."""
    is_known_U = np.zeros(len(names), bool)
    for ids, vectors_ND in run.iter_vectors(entity_type):
        at = pc.index_in(names, value_set=ids)
        here = at.is_valid().to_numpy(zero_copy_only=False)
        vectors_UD[here] = vectors_ND[at.drop_null().to_numpy()]
        is_known_U |= here
        if is_known_U.all():
            break
    return is_known_U


def _moments(run: VectorsByType, entity_type: str) -> Any:
    moments = moments_of(vectors_ND for _, vectors_ND in run.iter_vectors(entity_type))
    if moments is None:
        raise BadInputError(f"features: expected vectors of {entity_type!r}, found none")
    return moments


def _similar(run: VectorsByType, entity_type: str, ids: Sequence[Any]) -> Similar:
    names = strings_given(ids, "similar_to").unique().to_pylist()
    if not 1 <= len(names) <= MOST_SIMILAR:
        raise BadInputError(f"similar_to: expected a list of 1 to {MOST_SIMILAR} ids, found {quoted([ids])}")
    vectors = run.find(entity_type, names)
    if unknown := [name for name in names if name not in vectors]:
        found = f"{len(unknown)} others: {quoted(unknown[:5])}"
        raise BadInputError(f"similar_to: expected ids of {entity_type!r}, found {found}")
    return Similar(names, np.stack([vectors[name] for name in names]))
