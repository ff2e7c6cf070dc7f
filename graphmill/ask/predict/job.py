"""Answers of a trained run, by raw id: the best candidates for ids, or scores of given pairs.

{to}/                           replaced as a whole, once every file is written
    part-{number:05d}.parquet   answers (see `answers`) or scores, one file per task; scores are
        lhs, relation, rhs      string      pairs as they were given
        score                   float32     null where the run does not know an id
    _predict.json               what was asked, and figures
    _checksums.xxh128           checksums of the files
    _SUCCESS

Shapes: E pairs, D dimension.
"""

import logging
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from distributed import Client

from graphmill import storage
from graphmill.ask import given
from graphmill.ask.entities import UNKNOWN, EntityTable, EntityTables, Numbers, find_ends, read_tables
from graphmill.ask.predict import approximate, lists, search
from graphmill.ask.predict.answers import NUMBERED, IdChunk, write_answers
from graphmill.ask.predict.make_lists import check_faiss
from graphmill.ask.predict.settings import PredictOptions
from graphmill.ask.relation import Relation, number_of, read_parameters, relation_of
from graphmill.ask.run import TrainedRun
from graphmill.ask.scan import HEIGHT, made
from graphmill.checkpoints import Floats
from graphmill.cluster import run_tasks
from graphmill.config import Config
from graphmill.display import progress
from graphmill.display.readable import quoted
from graphmill.errors import ConfigError, FormatError
from graphmill.run import fingerprints
from graphmill.run.lock import NO_CLAIM, Claim
from graphmill.run.output_checks import check_folder, check_result_folder
from graphmill.run.work import Made, Work, make_result
from graphmill.storage import Checksums
from graphmill.vocab import Side

RECORD = "_predict.json"
_PIECE_IDS = 1 << 18
_SHOWN = 5

_PAIR = ("lhs", "relation", "rhs")
SCHEMA = pa.schema(
    [*(pa.field(name, pa.string(), nullable=False) for name in _PAIR), pa.field("score", pa.float32())]
)

log = logging.getLogger("graphmill")


def check(config: Config, question: PredictOptions, to: str) -> None:
    """Refuse wrong options before anything is started or written.

    Raises:
        ConfigError: there is no such relation, a type is featurized, or the folder holds other files.
        NotFoundError: there is no checkpoint, no raw ids, no such file, or no calibration.
        FormatError: the calibration is damaged, or of another checkpoint.
    """
    check_result_folder(to, RECORD)
    trained = TrainedRun.chosen(config)
    names = trained.relation_names
    if question.cosine:
        search.cosine_relation(config, question)
    elif question.relation is not None:
        number_of(trained, question.relation)
    elif question.pairs is None and len(names) > 1:
        raise ConfigError(f"--relation: missing; the run has {', '.join(names[:10])}")
    if featurized := [name for name in _types(config, question) if config.entities[name].featurized]:
        option = "--cosine" if question.cosine else "--relation"
        raise ConfigError(
            f"{option}: {', '.join(featurized)}: a featurized type has no list of all its entities to "
            "choose from"
        )
    for option, uri in (("--ids", question.ids), ("--pairs", question.pairs)):
        if uri is not None:
            given.files(uri, option)
    if question.pairs is not None and len(names) > 1:
        _check_one_names_relations(question.pairs, question.relation)
    if question.pairs is None:
        search.relation_asked(trained, question)
    if question.index is not None:
        if storage.contains(to, question.index):
            raise ConfigError(
                f"--index: {question.index} lies in the folder of --to, which is replaced as a whole"
            )
        check_folder(question.index, lists.NAMES, "--index", "which is no list of candidates", below=True)
    if question.how == "approximate":
        check_faiss()
    if question.calibrated:
        search.read_calibration(trained)


def run(
    config: Config, question: PredictOptions, to: str, client: Client, claim: Claim = NO_CLAIM
) -> dict[str, Any]:
    """Write the answers; return the figures, which `_predict.json` has too.

    Raises:
        ConfigError: the memory does not suffice, or no id is known.
        FormatError: checkpoint, raw ids, edges or the given file are damaged or do not fit each other.
    """
    trained = TrainedRun.chosen(config)
    tables = read_tables(trained, _types(config, question), client)
    uris = [config.entity_path, config.checkpoint_path, *filter(None, (question.ids, question.pairs))]
    uris += config.edge_paths if question.exclude_known else []
    made_from = {"predict": question.described(), "inputs": fingerprints.describe_inputs(uris)}
    layout: dict[str, Any] = {"version": trained.version, "memory_bytes": question.memory_bytes}
    if question.pairs:
        make = partial(_score_pairs, trained, question, tables)
    else:
        asked = search.asked_of(trained, question, tables)
        layout |= {"index": question.index, "scores": _formula(asked.relation)}
        layout |= {"itself_left_out": asked.is_itself_left_out}
        make = partial(_answer_ids, trained, question, asked)

    def write(work: Work) -> Made:
        figures, checksums = make(work)
        head = {"checkpoint_version": trained.version, "num_files": len(checksums)}
        return question.described() | head | figures, checksums

    return make_result("predict", to, RECORD, made_from, write, client, claim, **layout)


def _types(config: Config, question: PredictOptions) -> list[str]:
    """Types of the ids that are asked about and of their answers."""
    if question.cosine:
        return list(dict.fromkeys(search.cosine_relation(config, question).types.values()))
    relations = config.relations
    if question.relation is not None and not config.dynamic_relations:
        relations = tuple(relation for relation in relations if relation.name == question.relation)
    return list(dict.fromkeys(relation.entity_type(side) for relation in relations for side in Side))


def _formula(relation: Relation) -> dict[str, Any]:
    """Name what the scores of a checkpoint's vectors depend on, beside its parameters."""
    names = ("operator", "comparator", "bias")
    return {"relation": relation.name} | {name: getattr(relation, name) for name in names}


def _answer_ids(trained: TrainedRun, question: PredictOptions, asked: search.Asked, work: Work) -> Made:
    """Write the best candidates of all ids; return figures and checksums. Files of a killed command stay."""
    config = trained.config
    relation, queries, candidates = asked.relation, asked.queries, asked.candidates
    if asked.is_itself_left_out and not question.cosine:
        log.info(
            "predict: no id is its own answer, as no training edge of %s is a loop (but with --with-itself)",
            relation.name,
        )
    if config.num_gpus and not asked.num_gpus:
        log.info("predict: on the CPU, as scores of %s are no dot products", relation.comparator)
    if question.ids is None:
        chunks = [
            IdChunk(start, min(start + asked.sizes.queries, queries.num_entities))
            for start in range(0, max(queries.num_entities, 1), asked.sizes.queries)
        ]
        counts: dict[str, Any] = {"num_ids": queries.num_entities}
    else:
        chunks, counts = _find(asked, question.ids, work)
    vectors = fingerprints.describe_inputs([config.entity_path, trained.checkpoint_path])
    made_from = {
        "vectors": vectors,
        "checkpoint_version": trained.version,
        "type": candidates.entity_type,
        "side": str(asked.side),
        **_formula(relation),
    }
    asked, chunks, how = approximate.prepare(question, asked, chunks, work, made_from)
    started_s = time.monotonic()
    arguments = {
        f"part-{number:05d}": (asked, chunk, work.part_uri(number)) for number, chunk in enumerate(chunks)
    }
    written = work.run_tasks(write_answers, arguments, description="predicting", unit="files")
    sums = {key: sum(part[key] for part in written) for key in ("num_answers", "num_known_left_out")}
    checksums = {work.part_uri(number): part["checksum"] for number, part in enumerate(written)}
    log.info("predict: %d answers in %.1f s", sums["num_answers"], time.monotonic() - started_s)
    if question.cosine:
        del sums["num_known_left_out"]
    kinds = {
        "relation": relation.name,
        "id_type": queries.entity_type,
        "candidate_type": candidates.entity_type,
        "itself_left_out": asked.is_itself_left_out,
    }
    return kinds | counts | {"num_candidates": candidates.num_entities} | sums | how, checksums


def _find(asked: search.Asked, ids_uri: str, work: Work) -> tuple[list[IdChunk], dict[str, Any]]:
    """Find the entities of the given ids; return pieces for the tasks, and counts."""
    pieces = given.cut(given.iter_ids(ids_uri), work.uri("given"), _PIECE_IDS, 64 << 20)
    may_have_header = given.may_have_header(ids_uri)
    searched = run_tasks(
        work.client,
        find_ids,
        [
            (asked.queries, uri, asked.sizes.queries, may_have_header and not number)
            for number, uri in enumerate(pieces)
        ],
        description="finding the ids",
        unit="pieces",
    )
    if may_have_header:
        log.info(
            "predict: %s: no column is named id: the first column has the ids, and the first line %s",
            ids_uri,
            "is its name, as the run knows no such id"
            if searched and searched[0]["has_header"]
            else "is an id too",
        )
    num_ids, num_unknown = (sum(piece[key] for piece in searched) for key in ("num_ids", "num_unknown"))
    shown = [name for piece in searched for name in piece["unknown"]][:_SHOWN]
    kind = asked.queries.entity_type
    named = quoted(shown) + (", ..." if num_unknown > len(shown) else "")
    if num_unknown == num_ids:
        like = f", such as {named}" if shown else ""
        found = f"{num_ids} others{like}" if num_ids else "none"
        raise ConfigError(f"--ids {ids_uri}: expected ids of {kind!r}, found {found}")
    if num_unknown:
        told = "predict: ids that are no %s of the run get no answers (%d of %d): %s"
        log.warning(told, kind, num_unknown, num_ids, named)
    chunks = [
        IdChunk(start, min(start + asked.sizes.queries, piece["num_ids"]), piece["uri"], group)
        for piece in searched
        for group, start in enumerate(range(0, piece["num_ids"], asked.sizes.queries))
    ]
    return chunks, {"num_ids": num_ids, "num_unknown": num_unknown, "unknown": shown}


def find_ids(table: EntityTable, uri: str, group_rows: int, may_have_header: bool = False) -> dict[str, Any]:
    """Write the ids of a piece with the numbers of their entities; a Dask task.

    Returns the new file, counts, and the first unknown ids. A first id that is unknown and may be a header is
    left out.
    """
    ids = given.read_piece(uri)["id"].combine_chunks()
    numbers = table.find(ids)
    has_header = may_have_header and bool(numbers[0] == UNKNOWN)
    ids, numbers = ids[int(has_header) :], numbers[int(has_header) :]
    numbered_uri = storage.join(storage.parent(uri), f"found-{storage.name(uri)}")
    with storage.atomic_output(numbered_uri) as stream:
        pq.write_table(pa.table([ids, pa.array(numbers)], schema=NUMBERED), stream, row_group_size=group_rows)
    unknown = pc.filter(ids, pa.array(numbers == UNKNOWN))
    return {
        "uri": numbered_uri,
        "has_header": has_header,
        "num_ids": len(ids),
        "num_unknown": len(unknown),
        "unknown": unknown[:_SHOWN].to_pylist(),
    }


def _check_one_names_relations(uri: str, relation: str | None) -> None:
    """Refuse pairs whose relations both the option and a column name, or neither."""
    first = next(given.iter_pairs(uri), None)
    if first is None or ("relation" in first.column_names) == (relation is None):
        return
    if relation is None:
        raise ConfigError(f"--relation: missing; {uri} has no column `relation`")
    raise ConfigError(f"--relation: cannot be used with --pairs {uri}, whose column `relation` names them")


def _score_pairs(trained: TrainedRun, question: PredictOptions, tables: EntityTables, work: Work) -> Made:
    """Write the scores of all pairs; return figures and checksums."""
    given_uri = question.pairs or ""
    names = trained.relation_names
    dimension = max(table.dimension for table in tables.values())
    sizes = search.sizes_for(question.memory_bytes, dimension, 1, 1)
    pairs = map(partial(_checked, names=names, uri=given_uri), given.iter_pairs(given_uri))
    pieces = given.cut(pairs, work.uri("given"), sizes.pairs, question.memory_bytes // 4)
    if not pieces:
        raise ConfigError(f"--pairs {given_uri}: expected pairs, found none")
    asked = trained, tables, question.side, question.relation or names[0]
    arguments = {
        f"part-{number:05d}": (*asked, piece, work.part_uri(number)) for number, piece in enumerate(pieces)
    }
    written = work.run_tasks(write_scores, arguments, description="scoring pairs", unit="files")
    sums = {key: sum(counts[key] for counts, _ in written) for key in ("num_pairs", "num_without_score")}
    if num_without := sums["num_without_score"]:
        told = "predict: pairs without a score, as the run does not know an id of theirs: %d of %d"
        log.warning(told, num_without, sums["num_pairs"])
    return sums, {uri: checksum for _, files in written for uri, checksum in files.items()}


def _checked(pairs: pa.Table, names: list[str], uri: str) -> pa.Table:
    if "relation" in pairs.column_names:
        given_names = pc.unique(pairs["relation"])
        unknown = given_names.filter(pc.invert(pc.is_in(given_names, pa.array(names, pa.string()))))
        if len(unknown):
            raise FormatError(
                f"{uri}: column 'relation': expected one of {', '.join(names[:10])}, found "
                f"{unknown[0].as_py()!r}"
            )
    return pairs


def write_scores(
    trained: TrainedRun,
    tables: EntityTables,
    side: Side,
    relation_name: str,
    piece_uri: str,
    uri: str,
) -> tuple[dict[str, int], Checksums]:
    """Write scores of a piece of pairs; return pairs, pairs without score, and checksums. A Dask task.

    A dynamic or reciprocal relation uses the operator of `side`. Pairs that name no relation are of
    `relation_name`.
    """
    pairs = given.read_piece(piece_uri)
    if "relation" not in pairs.column_names:
        pairs = pairs.append_column("relation", pa.repeat(relation_name, len(pairs)))
    pairs = pairs.select(_PAIR).combine_chunks()
    relation_E = pc.index_in(pairs["relation"], pa.array(trained.relation_names)).to_numpy()
    number_E = find_ends(trained.config, tables, relation_E, pairs)
    is_known_E = (number_E[Side.LHS] != UNKNOWN) & (number_E[Side.RHS] != UNKNOWN)
    parameters, score_E = read_parameters(trained), np.zeros(len(pairs), np.float32)
    for number in np.unique(relation_E[is_known_E]).tolist():
        mine = np.flatnonzero((relation_E == number) & is_known_E)
        ends = {end: number_E[end][mine] for end in Side}
        score_E[mine] = _scores(tables, side, relation_of(trained, parameters, number), ends)
        progress.stop_if_cancelled()
    table = pa.table([*pairs.columns, pa.array(score_E, mask=~is_known_E)], schema=SCHEMA)
    checksums: Checksums = {}
    with storage.atomic_output(uri, is_large=True, checksums=checksums) as stream:
        pq.write_table(table, stream, compression="zstd", write_page_checksum=True)
    return {"num_pairs": len(pairs), "num_without_score": int((~is_known_E).sum())}, checksums


def _scores(tables: EntityTables, side: Side, relation: Relation, ends: Mapping[Side, Numbers]) -> Floats:
    """Score pairs of one relation, by the numbers of their ends: [E]."""
    makes = {side.other: partial(relation.queries, side), side: partial(relation.candidates, side)}
    vectors = {}
    for end, make in makes.items():
        table = tables[relation.types[end]]
        where = f"{table.trained.checkpoint_path}: {table.entity_type!r}"
        vectors[end] = made(make, table.gather(ends[end]), HEIGHT, where)[: len(ends[end])]
    scores: Floats = relation.edge_scores(side, vectors[side.other], vectors[side])
    return scores
