"""Answers for ids: what is asked, who is asked about, and the tasks that answer."""

import logging
import time
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from distributed import Client

from graphmill import storage
from graphmill.ask import given
from graphmill.ask.edges import known_paths, loopless
from graphmill.ask.entities import UNKNOWN, EntityTable
from graphmill.ask.predict import approximate
from graphmill.ask.predict.answers import NUMBERED, IdChunk, write_answers
from graphmill.ask.predict.search import GPU_PRODUCTS, PRODUCTS, Asked, sizes_for
from graphmill.ask.predict.settings import PredictOptions
from graphmill.ask.relation import Relation, number_of, read_parameters, relation_of
from graphmill.ask.run import TrainedRun
from graphmill.checkpoints import pbg
from graphmill.cluster import run_tasks
from graphmill.config import Config
from graphmill.errors import ConfigError, suggestion
from graphmill.formats import calibration
from graphmill.formats.calibration import Calibration
from graphmill.model import comparators
from graphmill.model.calibration import NUM_BEST
from graphmill.run import fingerprints
from graphmill.run.work import Work
from graphmill.storage import Checksums
from graphmill.vocab import Side

_PIECE_IDS = 1 << 18
_SHOWN = 5

log = logging.getLogger("graphmill")


def asked_of(trained: TrainedRun, question: PredictOptions, tables: Mapping[str, EntityTable]) -> Asked:
    """Make of a question what every task gets."""
    config = trained.config
    relation, side = relation_asked(trained, question), question.side
    queries, candidates = tables[relation.types[side.other]], tables[relation.types[side]]
    k = max(1, min(question.k, candidates.num_entities))
    num_gpus = config.num_gpus if comparators.is_dot(relation.comparator, relation.bias) else 0
    products = GPU_PRODUCTS if num_gpus else PRODUCTS
    scale = read_calibration(trained).scale(relation.name, side) if question.calibrated else None
    num_best = k if scale is None else max(k, NUM_BEST)
    memory_bytes, num_entities = question.memory_bytes, candidates.num_entities
    sizes = sizes_for(memory_bytes, candidates.dimension, num_entities, num_best, products)
    folders = tuple(known_paths(config)) if question.exclude_known else ()
    if question.cosine:
        itself = queries.entity_type == candidates.entity_type
    else:
        itself = not question.with_itself and bool(loopless(config, [relation.number]))
    return Asked(relation, side, k, num_best, queries, candidates, folders, itself, sizes, num_gpus, scale)


def relation_asked(trained: TrainedRun, question: PredictOptions) -> Relation:
    """Make the relation that answers."""
    if question.cosine:
        return cosine_relation(trained.config, question)
    number = number_of(trained, question.relation or trained.relation_names[0])
    return relation_of(trained, read_parameters(trained), number)


def cosine_relation(config: Config, question: PredictOptions) -> Relation:
    """Make the relation whose score of two ids is the cosine of their vectors."""
    types = list(config.entities)
    if question.id_type is None and len(types) > 1:
        raise ConfigError(f"--type: missing; the run has {', '.join(types[:10])}")
    own = _known_type("--type", question.id_type or types[0], types)
    other = _known_type("--candidates", question.candidate_type or own, types)
    if config.entity_dimension(own) != config.entity_dimension(other):
        raise ConfigError(
            f"--candidates {other}: expected vectors as long as those of {own} "
            f"({config.entity_dimension(own)}), found {config.entity_dimension(other)}"
        )
    return Relation("cosine", 0, {Side.LHS: own, Side.RHS: other}, "none", "cos", False, {Side.RHS: []})


def _known_type(option: str, name: str, types: list[str]) -> str:
    if name not in types:
        raise ConfigError(f"{option} {name}: {suggestion(name, types, 'expected one of')}")
    return name


def read_calibration(trained: TrainedRun) -> Calibration:
    """Read the calibration of the run; raises as `graphmill.formats.calibration.read`."""
    config = trained.config
    checksum = pbg.version_checksum(trained.checkpoint_path, trained.version)
    uri = calibration.uri_beside(config.record_uri(config.checkpoint_path))
    return calibration.read(uri, trained.version, checksum)


def formula(relation: Relation) -> dict[str, Any]:
    """Name what the scores of a checkpoint's vectors depend on, beside its parameters."""
    names = ("operator", "comparator", "bias")
    return {"relation": relation.name} | {name: getattr(relation, name) for name in names}


def answer_ids(
    trained: TrainedRun, question: PredictOptions, asked: Asked, client: Client, work: Work
) -> tuple[dict[str, Any], Checksums]:
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
        chunks, counts = _find(asked, question.ids, work, client)
    vectors = fingerprints.describe_inputs([config.entity_path, trained.checkpoint_path])
    made_from = {
        "vectors": vectors,
        "checkpoint_version": trained.version,
        "type": candidates.entity_type,
        "side": str(asked.side),
        **formula(relation),
    }
    asked, chunks, how = approximate.prepare(question, asked, chunks, work, made_from, client)
    started_s = time.monotonic()
    checksums, sums = _write(asked, chunks, work, client)
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


def _write(
    asked: Asked, chunks: list[IdChunk], work: Work, client: Client
) -> tuple[Checksums, dict[str, int]]:
    """Write the answers of all chunks that have none yet; return checksums and sums."""
    arguments = {
        f"part-{number:05d}": (asked, chunk, work.part_uri(number)) for number, chunk in enumerate(chunks)
    }
    written = work.run_tasks(client, write_answers, arguments, description="predicting", unit="files")
    checksums = {work.part_uri(number): part["checksum"] for number, part in enumerate(written)}
    keys = ("num_answers", "num_known_left_out")
    return checksums, {key: sum(part[key] for part in written) for key in keys}


def _find(asked: Asked, ids_uri: str, work: Work, client: Client) -> tuple[list[IdChunk], dict[str, Any]]:
    """Find the entities of the given ids; return pieces for the tasks, and counts."""
    pieces = given.cut(given.iter_ids(ids_uri), work.uri("given"), _PIECE_IDS, 64 << 20)
    may_have_header = given.may_have_header(ids_uri)
    searched = run_tasks(
        client,
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
    named = ", ".join(map(repr, shown)) + (", ..." if num_unknown > len(shown) else "")
    if num_unknown == num_ids:
        like = f", such as {named}" if shown else ""
        found = f"{num_ids} others{like}" if num_ids else "none"
        raise ConfigError(f"--ids {ids_uri}: expected ids of {kind!r}, found {found}")
    if num_unknown:
        told = "predict: %d of %d ids are no %s of the run and get no answers: %s"
        log.warning(told, num_unknown, num_ids, kind, named)
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
