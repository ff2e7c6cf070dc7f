"""The best candidates of some queries, as one file: a Dask task.

    part-{number:05d}.parquet       the answers of an id together, best first
        id          string          the raw id that was asked for
        relation    string
        rank        int32           1 is the best
        candidate   string          the raw id of the answer
        score       float32         the model's score of the edge
        probability float32         with a calibration: see graphmill.model.calibration

Shapes: Q ids, U distinct entities among them, M answers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphmill.ask.entities import UNKNOWN, Numbers
from graphmill.ask.predict.search import Asked, search_lists
from graphmill.ask.scan import Answers
from graphmill.formats.parquet import iter_columns, new_file, open_parquet
from graphmill.model.calibration import NUM_BEST, Scale, probabilities, shares
from graphmill.sorted_arrays import distinct, ranges
from graphmill.storage import Checksums

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("relation", pa.string(), nullable=False),
        pa.field("rank", pa.int32(), nullable=False),
        pa.field("candidate", pa.string(), nullable=False),
        pa.field("score", pa.float32(), nullable=False),
    ]
)
PROBABILITY = pa.field("probability", pa.float32(), nullable=False)
NUMBERED = pa.schema([pa.field("id", pa.string()), pa.field("number", pa.int64())])
_ROWS_OF_A_GROUP = 1 << 17


@dataclass(frozen=True)
class IdChunk:
    """Entities start..stop of the queries' type, or some row groups of a file of ids with their numbers."""

    start: int
    stop: int
    ids_uri: str | None = None
    group: int = 0
    num_groups: int = 1


def joined(chunks: Sequence[IdChunk], most: int) -> list[IdChunk]:
    """Join chunks that follow each other in the same place, into ones of at most so many queries."""
    merged: list[IdChunk] = []
    for chunk in chunks:
        last = merged[-1] if merged else None
        if last is None or last.ids_uri != chunk.ids_uri or chunk.stop - last.start > most:
            merged.append(chunk)
        else:
            merged[-1] = replace(last, stop=chunk.stop, num_groups=last.num_groups + chunk.num_groups)
    return merged


def write_answers(asked: Asked, chunk: IdChunk, uri: str) -> dict[str, Any]:
    """Write a chunk's answers; return their number, the known edges left out, and the file's checksum."""
    ids, number_Q = _read_chunk(asked, chunk)
    number_U = distinct(number_Q[number_Q != UNKNOWN])
    if asked.lists is None:
        answers, num_known = asked.search_all(number_U)
    else:
        answers, num_known = search_lists(asked, asked.lists, number_U)
    place_Q = np.searchsorted(number_U, number_Q)
    num_rows, checksum = _write(asked, ids, place_Q, number_Q != UNKNOWN, answers, uri)
    num_known -= len(number_U) if asked.is_itself_left_out else 0
    return {"num_answers": num_rows, "num_known_left_out": num_known, "checksum": checksum}


def _read_chunk(asked: Asked, chunk: IdChunk) -> tuple[pa.ChunkedArray, Numbers]:
    """Raw ids (string [Q]) and the numbers of their entities [Q]."""
    if chunk.ids_uri is None:
        number_Q = np.arange(chunk.start, chunk.stop)
        return asked.queries.names(number_Q), number_Q
    groups, rows = list(range(chunk.group, chunk.group + chunk.num_groups)), chunk.stop - chunk.start
    with open_parquet(chunk.ids_uri) as parquet:
        columns = iter_columns(parquet, chunk.ids_uri, NUMBERED.names, rows, groups)
        batches = [batch for _, batch in columns]
    ids, numbers = zip(*batches, strict=True)
    return pa.chunked_array(ids, pa.string()), np.concatenate([number.to_numpy() for number in numbers])


def _write(
    asked: Asked,
    ids: pa.ChunkedArray,
    place_Q: Numbers,
    is_known_Q: npt.NDArray[np.bool_],
    answers: Answers,
    uri: str,
) -> tuple[int, str]:
    """Write the best answers of each id, in the order of the ids; return their number, and the checksum."""
    schema, added = SCHEMA, []
    if asked.scale is not None:
        schema, added = SCHEMA.append(PROBABILITY), [_probabilities_of(answers, asked.scale)]
    wanted, place_M = np.unique(answers.candidate, return_inverse=True)  # no search at random places
    names = asked.candidates.names(wanted).cast(pa.large_string()).combine_chunks()
    num_rows = 0
    checksums: Checksums = {}
    options: dict[str, Any] = {"compression": "zstd", "use_dictionary": ["id", "relation", "candidate"]}
    with new_file(uri, schema, checksums, is_large=True, **options) as parquet:
        step = max(1, _ROWS_OF_A_GROUP // asked.k)
        for start in range(0, len(ids), step):
            part = slice(start, start + step)
            query = np.flatnonzero(is_known_Q[part])
            first = np.searchsorted(answers.query, place_Q[part][query])
            count = np.searchsorted(answers.query, place_Q[part][query], side="right") - first
            count = np.minimum(count, asked.k)
            rank, taken = ranges(np.zeros_like(count), count), ranges(first, count)
            columns = [
                ids[part].take(pa.array(np.repeat(query, count))),
                pa.repeat(asked.relation.name, len(taken)),
                pa.array((rank + 1).astype(np.int32)),
                names.take(pa.array(place_M[taken])).cast(pa.string()),
                pa.array(answers.score[taken]),
                *(pa.array(column_M[taken]) for column_M in added),
            ]
            parquet.write_table(pa.table(columns, schema=schema), max(len(taken), 1))
            num_rows += len(taken)
    return num_rows, checksums[uri]


def _probabilities_of(answers: Answers, scale: Scale) -> npt.NDArray[np.float32]:
    """The probability of each answer, [M]; a query has its NUM_BEST best answers, or all there are."""
    query, place = answers.query, answers.place
    most = max(int(place.max(initial=0)) + 1, NUM_BEST)
    share_QK = shares(answers.table(int(query.max(initial=-1)) + 1, most)[0], scale.temperature)
    return probabilities(share_QK[query, place], *scale.line).astype(np.float32)
