"""Scores of given pairs, as one file in the order of the pairs: a Dask task.

    part-{number:05d}.parquet
        lhs, relation, rhs      string      as they were given
        score                   float32     null where the run does not know an id

Shapes: E pairs, D dimension.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from graphmill import storage
from graphmill.ask.entities import UNKNOWN, EntityTable
from graphmill.ask.given import read_piece
from graphmill.ask.relation import Relation, read_parameters, relation_of
from graphmill.ask.run import TrainedRun
from graphmill.ask.scan import HEIGHT
from graphmill.ask.scan import made as made_of
from graphmill.checkpoints import Floats
from graphmill.display import progress
from graphmill.storage import Checksums
from graphmill.vocab import Side

SCHEMA = pa.schema(
    [
        pa.field("lhs", pa.string(), nullable=False),
        pa.field("relation", pa.string(), nullable=False),
        pa.field("rhs", pa.string(), nullable=False),
        pa.field("score", pa.float32()),
    ]
)


@dataclass(frozen=True)
class AskedPairs:
    """Inputs that every task needs to score pairs.

    Attributes:
        side: side whose operator a dynamic or reciprocal relation uses for queries.
        tables: entities by type.
        relation: the relation of pairs that name none.
    """

    trained: TrainedRun
    side: Side
    tables: Mapping[str, EntityTable]
    relation: str | None


def write_scores(asked: AskedPairs, piece_uri: str, uri: str) -> tuple[dict[str, int], Checksums]:
    """Write scores of a piece of pairs; return pairs, pairs without score, and checksums."""
    pairs = read_piece(piece_uri)
    if "relation" not in pairs.column_names:
        pairs = pairs.append_column("relation", pa.repeat(asked.relation or "", len(pairs)))
    pairs = pairs.select(SCHEMA.names[:3]).combine_chunks()
    parameters = read_parameters(asked.trained)
    score_E, is_known_E = np.zeros(len(pairs), np.float32), np.zeros(len(pairs), bool)
    for name in pc.unique(pairs["relation"]).to_pylist():
        relation = relation_of(asked.trained, parameters, asked.trained.relation_names.index(name))
        mine = np.flatnonzero(pc.equal(pairs["relation"], name).to_numpy())
        score_E[mine], is_known_E[mine] = _scores(asked, relation, pairs.take(pa.array(mine)))
        progress.stop_if_cancelled()
    scores = pa.array(score_E, mask=~is_known_E)
    checksums: Checksums = {}
    with storage.atomic_output(uri, is_large=True, checksums=checksums) as stream:
        columns = [*(pairs[name] for name in SCHEMA.names[:3]), scores]
        table = pa.table(columns, schema=SCHEMA)
        pq.write_table(table, stream, compression="zstd", write_page_checksum=True)
    return {"num_pairs": len(pairs), "num_without_score": int((~is_known_E).sum())}, checksums


def _scores(asked: AskedPairs, relation: Relation, pairs: pa.Table) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Scores [E] of one relation's pairs, and which of them both ends are known of."""
    side = asked.side
    numbers = {end: asked.tables[relation.types[end]].find(pairs[str(end)].combine_chunks()) for end in Side}
    is_known_E = (numbers[Side.LHS] != UNKNOWN) & (numbers[Side.RHS] != UNKNOWN)
    known = {end: numbers[end][is_known_E] for end in Side}
    makes = {side.other: partial(relation.queries, side), side: partial(relation.candidates, side)}
    made = {}
    for end, make in makes.items():
        table = asked.tables[relation.types[end]]
        where = f"{asked.trained.checkpoint_path}: {table.entity_type!r}"
        made[end] = made_of(make, table.gather(known[end]), HEIGHT, where)[: len(known[end])]
    score_E = np.zeros(len(pairs), np.float32)
    score_E[is_known_E] = relation.edge_scores(side, made[side.other], made[side])
    return score_E, is_known_E
