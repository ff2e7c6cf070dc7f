"""A finished run as an object, for notebooks and scripts: `graphmill.open(URI)`.

The object reads run.json and the embeddings, and writes nothing. Outside the run's folder it opens only what
the caller names.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphmill import config, storage
from graphmill.ask.neighbors import Neighbor, by_cosine, close_id, nearest
from graphmill.checkpoints import Floats
from graphmill.config import no_run, place_now
from graphmill.config.yaml_text import as_yaml
from graphmill.display.readable import quoted
from graphmill.errors import BadInputError, NotFoundError, optional, suggestion
from graphmill.formats import remapped
from graphmill.formats.raw_ids import strings_given
from graphmill.run.record import read_run
from graphmill.vocab import RECORD

if TYPE_CHECKING:
    import dask.dataframe as dd
    import pandas as pd

    from graphmill.library.fold_in import Edge, FoldedId, FoldIn


class Run:
    """Outputs of the run at `uri`: settings, figures, metrics, and embeddings by raw id.

    Args:
        uri: the run's `output`, local or on HDFS; or its run.json.
        embedding_path: the folder of the embeddings, if it is outside the run's folder.
        plugins: files and modules of plug-ins that may run; those that run.json names do not, by themselves.

    Raises:
        NotFoundError: there is neither run.json nor a folder of embeddings.
        FormatError: run.json is not the record of a run.
    """

    def __init__(self, uri: str, embedding_path: str | None = None, plugins: Sequence[str] = ()) -> None:
        self.uri = storage.parent(uri) if storage.name(uri) == RECORD else uri.rstrip("/")
        self.record: Mapping[str, Any] = read_run(storage.join(self.uri, RECORD))
        self._plugins = [f"train.plugins={as_yaml(list(plugins))}"] if plugins else []
        there = place_now(self.config.get("embedding_path"), self.config.get("output"), self.uri)  # if moved
        self.embedding_path = embedding_path or there or storage.join(self.uri, "embeddings")
        if not self.record and not storage.is_dir(self.embedding_path):
            raise no_run(self.uri)

    def __repr__(self) -> str:
        rows = ", ".join(f"{name}: {count:,}" for name, count in self.num_entities.items())
        return f"<graphmill run {self.uri}, {self.record.get('status', 'no run.json')}; {rows}>"

    @property
    def status(self) -> str | None:
        """`done`, `failed`, `running`; `died` without a last word, as by a kill; or None without run.json."""
        return self.record.get("status")

    @property
    def config(self) -> dict[str, Any]:
        """The settings of the run, with the keys of the configuration file."""
        return dict(self.record.get("config", {}))

    @property
    def stages(self) -> dict[str, dict[str, Any]]:
        """Figures of etl, train, evaluate and remap; docs/reference/run_json.md lists them."""
        return dict(self.record.get("stages", {}))

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the last evaluation: mrr, mean_rank, hits@1, ...; with `_pessimistic` too; num_edges."""
        return dict(self.record.get("metrics", {}))

    @property
    def before(self) -> dict[str, Any]:
        """The evaluation before the last: started, split, filtered, metrics; {} if there was none."""
        evaluated = self.record.get("before")
        return dict(evaluated) if isinstance(evaluated, dict) else {}

    @cached_property
    def _num_parts(self) -> dict[str, int]:
        if not storage.is_dir(self.embedding_path):
            return {}
        folders = [entry.uri for entry in storage.list_dir(self.embedding_path) if entry.is_dir]
        files = {storage.name(uri): [entry.uri for entry in storage.list_dir(uri)] for uri in folders}
        names = dict.fromkeys([*self.config.get("entities", {}), *files])
        counts = {name: sum(map(remapped.is_part, files.get(name, []))) for name in names}
        return {name: count for name, count in counts.items() if count}

    @property
    def entity_types(self) -> tuple[str, ...]:
        """The types that have embeddings, in the order of the configuration."""
        return tuple(self._num_parts)

    @cached_property
    def num_entities(self) -> dict[str, int]:
        """Number of embeddings of each type."""
        return {
            name: sum(remapped.shape_of(self.embedding_path, name, part)[0] for part in range(count))
            for name, count in self._num_parts.items()
        }

    def dimension(self, entity_type: str) -> int:
        """Length of the type's embeddings."""
        return remapped.shape_of(self.embedding_path, entity_type, self._parts_of(entity_type)[0])[1]

    def embeddings(self, entity_type: str) -> pa.Table:
        """All embeddings of a type: columns id (string), type, embedding (fixed_size_list<float>[D]).

        `.to_pandas()` makes a pandas table; pandas comes with `pip install 'graphmill[notebook]'`.
        `lazy_embeddings` reads types that do not fit in memory.
        """
        parts = self._parts_of(entity_type)
        return pa.concat_tables(
            remapped.read_part(self.embedding_path, entity_type, part) for part in parts
        ).unify_dictionaries()

    def lazy_embeddings(self, entity_type: str) -> "dd.DataFrame":
        """All embeddings as a Dask table, one partition per file.

        Raises:
            ConfigError: pandas is not installed.
        """
        missing = "lazy_embeddings: needs pandas; pip install 'graphmill[notebook]'"
        dataframe = optional("dask.dataframe", missing)
        meta = _to_pandas(remapped.schema(self.dimension(entity_type)).empty_table())
        read = partial(_read_pandas, self.embedding_path, entity_type)
        lazy: dd.DataFrame = dataframe.from_map(read, self._parts_of(entity_type), meta=meta)
        return lazy

    def vectors(self, entity_type: str, *, max_rows: int | None = None) -> tuple[list[str], Floats]:
        """Raw ids [N], and their embeddings, float32 [N, D], in the same order; `max_rows` as below."""
        none = np.empty((0, self.dimension(entity_type)), np.float32)
        parts = list(self.iter_vectors(entity_type, max_rows=max_rows))
        names = [name for ids, _ in parts for name in ids.to_pylist()]
        return names, np.concatenate([none, *(vectors_ND for _, vectors_ND in parts)])

    def iter_vectors(
        self, entity_type: str, batch_rows: int = 65536, *, max_rows: int | None = None
    ) -> Iterator[tuple[pa.Array, Floats]]:
        """Raw ids (string [N]) and embeddings [N, D] in batches, for types that do not fit in memory.

        With `max_rows`, the first rows only, evenly from all partitions.
        """
        parts = self._parts_of(entity_type)
        most = sys.maxsize if max_rows is None else max_rows
        _check(max_rows=(most, 0), batch_rows=(batch_rows, 1))
        for part in parts:
            left = most * (part + 1) // len(parts) - most * part // len(parts)
            rows = max(1, min(left, batch_rows))
            for ids, vectors_ND in remapped.iter_part(self.embedding_path, entity_type, part, rows):
                yield ids[:left], vectors_ND[:left]
                left -= len(ids)
                if left <= 0:
                    break

    def vector(self, entity_type: str, raw_id: str | int) -> Floats:
        """The embedding of one entity, float32 [D].

        Raises:
            NotFoundError: the type has no such id.
        """
        vectors = self.find(entity_type, [raw_id])
        if not vectors:
            close = close_id(str(raw_id), (ids for ids, _ in self.iter_vectors(entity_type)))
            raise NotFoundError(
                f"{quoted([raw_id])}: there is no {entity_type} of that id among "
                f"{self.num_entities[entity_type]:,}{close}"
            )
        return next(iter(vectors.values()))

    def find(self, entity_type: str, raw_ids: list[Any], max_rows: int | None = None) -> dict[str, Floats]:
        """The embeddings, float32 [D], of the given ids that exist (among the first `max_rows` rows)."""
        wanted, vectors = strings_given(raw_ids, "ids").unique(), {}
        for ids, vectors_ND in self.iter_vectors(entity_type, max_rows=max_rows):
            for row in np.flatnonzero(pc.is_in(ids, wanted).to_numpy(zero_copy_only=False)).tolist():
                vectors[ids[row].as_py()] = vectors_ND[row].copy()
            if len(vectors) == len(wanted):
                break
        return vectors

    def neighbors(
        self, entity_type: str, raw_id: str | int, k: int = 10, *, among: str | None = None
    ) -> list[Neighbor]:
        """The `k` entities with the largest cosine to the embedding of `raw_id`, nearest first.

        Reads all embeddings of the type (or of the type `among`), one batch in memory at a time.

        Raises:
            NotFoundError: the type has no such id.
            BadInputError: the two types' embeddings have different lengths, or k is not positive.
        """
        _check(k=(k, 1))
        among = among or entity_type
        if self.dimension(among) != self.dimension(entity_type):
            raise BadInputError(
                f"{entity_type} has embeddings of length {self.dimension(entity_type)}, {among} of "
                f"{self.dimension(among)}; these cannot be compared"
            )
        query_QD = self.vector(entity_type, raw_id)[None]
        own = str(raw_id) if among == entity_type else None
        return nearest(self.iter_vectors(among), by_cosine(query_QD), [own], k)[0]

    def features(
        self,
        entity_type: str,
        ids: Iterable[Any],
        *,
        components: int | None = None,
        similar_to: Sequence[Any] | None = None,
        as_columns: bool = False,
        edges: "Iterable[Edge] | pa.Table | None" = None,
    ) -> pa.Table:
        """Vectors for a column of ids, row by row: columns id, vector (list<float32>) and has_vector (bool).

        An id that the run does not know, a null and an empty text have no vector: it is null. Ids may repeat.
        In memory are the vectors of the ids, and one batch of all others. `graphmill features` does the same
        for tables that do not fit in memory.

        Args:
            ids: strings or integers: a list, a column of pandas or numpy, a pyarrow array.
            components: this many principal components of the type, in the column components.
            similar_to: cosines with the vectors of these ids, in columns similarity_ID.
            as_columns: a column for each number: vector_0, vector_1, ..., or component_0, ...
            edges: edges of unknown ids, as for `fold_in`: such ids get a vector, and its confidence.

        Raises:
            NotFoundError: the run has no embeddings of the type.
            BadInputError: wrong ids or options.
        """
        from graphmill.library.features import features

        return features(self, entity_type, ids, components, similar_to, as_columns, edges)

    def fold_in(self, edges: "Iterable[Edge] | pa.Table") -> "list[FoldedId]":
        """Vectors for the ids of some edges that the run does not know, in the order of their first edges.

        The first call reads checkpoint and raw ids: all vectors of the run are then in memory. Later calls
        take milliseconds. An id is solved as by `graphmill fold-in`, to the last bits, whatever other edges
        there are. Edges between two known ids, and between two new ones, are left out of the solution.

        Args:
            edges: (lhs, relation, rhs) or (lhs, relation, rhs, weight); or a table of these columns.

        Raises:
            NotFoundError: the run has no checkpoint, or no raw ids.
            BadInputError: an edge has an unknown relation, or ids of a featurized type.
            ConfigError: the run has plug-ins, and none were given to `graphmill.open`.
            FormatError: checkpoint and raw ids are damaged, or do not fit each other.
        """
        return self._fold_in(edges)

    @cached_property
    def _fold_in(self) -> "FoldIn":
        from graphmill.library.fold_in import FoldIn  # imports torch

        settings = config.load(storage.join(self.uri, RECORD), self._plugins)
        return FoldIn(settings, self.embedding_path)

    def size_bytes(self, entity_type: str) -> int:
        """Size of the type's files."""
        folder = storage.join(self.embedding_path, entity_type)
        self._parts_of(entity_type)
        return sum(entry.size_bytes for entry in storage.list_dir(folder) if not entry.is_dir)

    def _parts_of(self, entity_type: str) -> range:
        if entity_type not in self._num_parts:
            raise NotFoundError(
                f"{self.embedding_path}: there are no embeddings of the type {entity_type!r}; "
                f"{suggestion(str(entity_type), self._num_parts, 'types:')}"
            )
        return range(self._num_parts[entity_type])


def _check(**given: tuple[int, int]) -> None:
    for name, (value, least) in given.items():
        if value < least:
            raise BadInputError(f"{name}: expected {least} or more, found {value}")


def _read_pandas(embedding_path: str, entity_type: str, partition: int) -> "pd.DataFrame":
    return _to_pandas(remapped.read_part(embedding_path, entity_type, partition))


def _to_pandas(table: pa.Table) -> "pd.DataFrame":
    import pandas as pd

    kind = table.schema.field("embedding").type
    # Dask would turn a column of objects, such as arrays, into strings.
    frame: pd.DataFrame = table.to_pandas(types_mapper={kind: pd.ArrowDtype(kind)}.get)
    return frame
