"""Answers of a trained run, by raw id: the best candidates for ids, or scores of given pairs.

{to}/                           replaced as a whole, once every file is written
    part-{number:05d}.parquet   answers or scores, one file per task
    _predict.json               what was asked, and figures
    _SUCCESS
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from distributed import Client

from graphmill import storage
from graphmill.cluster import run_tasks
from graphmill.config import Config
from graphmill.errors import ConfigError, FormatError
from graphmill.model import comparators
from graphmill.model.calibration import NUM_BEST
from graphmill.run import record
from graphmill.run.lock import NO_CLAIM, Claim
from graphmill.run.output_checks import check_result_folder
from graphmill.trained.inputs import Inputs
from graphmill.trained.relation import Relation, number_of, read_parameters, relation_names, relation_of
from graphmill.trained.table import UNKNOWN, EntityTable, read_tables
from graphmill.vocab import Side
from remap.config import RemapConfig
from remap.output.complete import check_complete
from remap.predict import given
from remap.predict.answers import FOUND, Chunk, write_answers
from remap.predict.calibrated import read_calibration
from remap.predict.known import KnownEdges
from remap.predict.pairs import AskedPairs, write_scores
from remap.predict.search import Asked
from remap.predict.sizes import GPU_PRODUCTS, PRODUCTS, sizes_for
from remap.sources.inputs import find_inputs

RECORD = "_predict.json"
_GIVEN = "_given"
_OURS = rf"part-[0-9]{{5,}}\.parquet|{storage.MARKER}|{RECORD}"
_PIECE_IDS = 1 << 18
_SHOWN = 5

log = logging.getLogger("graphmill")


@dataclass(frozen=True)
class Question:
    """A user's question to a run.

    Attributes:
        relation: name of the relation; None where the pairs name it, or there is only one.
        side: side of the answers.
        ids: file of the ids that are asked about; None: all entities of the other side's type.
        pairs: file of the pairs to score, instead of ids.
        exclude_known: leave out edges of the run.
        calibrated: add the probability of each answer.
        memory_bytes: memory of a task.
    """

    relation: str | None = None
    side: Side = Side.RHS
    k: int = 100
    ids: str | None = None
    pairs: str | None = None
    exclude_known: bool = False
    memory_bytes: int = 512 << 20
    calibrated: bool = False


def check(config: Config, question: Question, to: str) -> None:
    """Refuse wrong options before anything is started or written.

    Raises:
        ConfigError: there is no such relation, a type is featurized, or the folder holds other files.
        NotFoundError: there is no checkpoint, no raw ids, no such file, or no calibration.
        FormatError: the calibration is damaged, or of another checkpoint.
    """
    check_result_folder(to, _OURS, RECORD)
    inputs = find_inputs(config, config.section(RemapConfig))
    names = relation_names(config)
    if question.relation is not None:
        number_of(names, question.relation)
    elif question.pairs is None and len(names) > 1:
        raise ConfigError(f"--relation: missing; the run has {', '.join(names[:10])}")
    if featurized := [name for name in _types(config, question) if config.entities[name].featurized]:
        raise ConfigError(
            f"--relation: {', '.join(featurized)}: a featurized type has no list of all its entities to "
            "choose from"
        )
    for uri in filter(None, (question.ids, question.pairs)):
        given.check_file(uri)
    if question.pairs and question.relation is None and len(names) > 1:
        _check_names_relations(question.pairs)
    if question.pairs is None:
        _relation(config, question, inputs)
    if question.calibrated:
        read_calibration(config, inputs)


def run(
    config: Config, question: Question, to: str, client: Client, claim: Claim = NO_CLAIM
) -> dict[str, Any]:
    """Write the answers; return the figures, which `_predict.json` has too.

    Raises:
        ConfigError: the memory does not suffice, or no id is known.
        FormatError: checkpoint, raw ids, edges or the given file are damaged or do not fit each other.
    """
    inputs = find_inputs(config, config.section(RemapConfig))
    tables = _measured(config, inputs, _types(config, question), client)
    with storage.atomic_directory(to) as folder:
        answer = _scores if question.pairs else _answers
        figures, files = answer(config, question, inputs, tables, folder, client)
        storage.delete(storage.join(folder, _GIVEN))
        asked = _described(question)
        figures = asked | {"checkpoint_version": inputs.version, "num_files": len(files)} | figures
        storage.write_text(storage.join(folder, RECORD), json.dumps(figures, indent=1) + "\n")
        check_complete(folder, {*files, storage.join(folder, RECORD)})
        storage.write_marker(folder, {"predict": asked, "inputs": _inputs(config, question)})
        claim.check()
    return figures


def asked_of(config: Config, question: Question, inputs: Inputs, tables: Mapping[str, EntityTable]) -> Asked:
    """Make of a question what every task gets.

    Raises:
        ConfigError: the memory does not suffice, or the checkpoint lacks a parameter of the relation.
    """
    relation, side = _relation(config, question, inputs), question.side
    queries, candidates = tables[relation.types[side.other]], tables[relation.types[side]]
    k = max(1, min(question.k, candidates.num_entities))
    num_gpus = config.num_gpus if comparators.is_dot(config.comparator, config.bias) else 0
    products = GPU_PRODUCTS if num_gpus else PRODUCTS
    scale = read_calibration(config, inputs).scale(relation.name, side) if question.calibrated else None
    num_best = k if scale is None else max(k, NUM_BEST)
    memory_bytes, num_entities = question.memory_bytes, candidates.num_entities
    sizes = sizes_for(memory_bytes, candidates.dimension, num_entities, num_best, products)
    known = KnownEdges.of_run(config, relation, side) if question.exclude_known else None
    return Asked(relation, side, k, queries, candidates, known, sizes, num_gpus, scale)


def _relation(config: Config, question: Question, inputs: Inputs) -> Relation:
    names = relation_names(config)
    number = number_of(names, question.relation or names[0])
    parameters = read_parameters(inputs.open_checkpoint(allow_non_finite=True))
    return relation_of(config, parameters, names, number, inputs.checkpoint_path)


def _types(config: Config, question: Question) -> list[str]:
    """Types of the relations that are asked about."""
    relations = config.relations
    if question.relation is not None and not config.dynamic_relations:
        relations = tuple(each for each in relations if each.name == question.relation)
    return list(dict.fromkeys(each.entity_type(side) for each in relations for side in Side))


def _check_names_relations(uri: str) -> None:
    first = next(given.iter_pairs(uri), None)
    if first is not None and "relation" not in first.column_names:
        raise ConfigError(f"--relation: missing; {uri} has no column `relation`")


def _measured(config: Config, inputs: Inputs, types: Sequence[str], client: Client) -> dict[str, EntityTable]:
    run = partial(run_tasks, client, description="measuring", unit="partitions")
    return read_tables(config, inputs, types, run)


def _answers(
    config: Config,
    question: Question,
    inputs: Inputs,
    tables: dict[str, EntityTable],
    folder: str,
    client: Client,
) -> tuple[dict[str, Any], list[str]]:
    """Write the best candidates of all ids; return figures and files."""
    asked = asked_of(config, question, inputs, tables)
    relation, queries, candidates, sizes = asked.relation, asked.queries, asked.candidates, asked.sizes
    if config.num_gpus and not asked.num_gpus:
        log.info("predict: on the CPU, as scores of %s are no dot products", config.comparator)
    if question.ids is None:
        chunks = [
            Chunk(start, min(start + sizes.queries, queries.num_entities))
            for start in range(0, max(queries.num_entities, 1), sizes.queries)
        ]
        counts: dict[str, Any] = {"num_ids": queries.num_entities}
    else:
        chunks, counts = _find(asked, question.ids, folder, client)
    files = _file_uris(folder, len(chunks))
    written = run_tasks(
        client,
        write_answers,
        [(asked, chunk, uri) for chunk, uri in zip(chunks, files, strict=True)],
        description="predicting",
        unit="files",
    )
    sums = {key: sum(each[key] for each in written) for key in ("num_answers", "num_known_left_out")}
    kinds = {
        "relation": relation.name,
        "id_type": queries.entity_type,
        "candidate_type": candidates.entity_type,
    }
    return kinds | counts | {"num_candidates": candidates.num_entities} | sums, files


def _find(asked: Asked, ids_uri: str, folder: str, client: Client) -> tuple[list[Chunk], dict[str, Any]]:
    """Find the entities of the given ids; return pieces for the tasks, and counts.

    Raises:
        ConfigError: the run knows none of the ids.
    """
    pieces = given.cut(given.iter_ids(ids_uri), storage.join(folder, _GIVEN), _PIECE_IDS, 64 << 20)
    found = run_tasks(
        client,
        find_ids,
        [(asked.queries, uri, asked.sizes.queries) for uri in pieces],
        description="finding the ids",
        unit="pieces",
    )
    num_ids, num_unknown = (sum(each[key] for each in found) for key in ("num_ids", "num_unknown"))
    shown = [name for each in found for name in each["unknown"]][:_SHOWN]
    kind = asked.queries.entity_type
    if num_unknown == num_ids:
        like = f", such as {', '.join(map(repr, shown))}" if shown else ""
        raise ConfigError(f"--ids {ids_uri}: expected ids of {kind!r}, found {num_ids} others{like}")
    if num_unknown:
        log.warning(
            "predict: %d of %d ids are no %s of the run and get no answers: %s%s",
            num_unknown,
            num_ids,
            kind,
            ", ".join(map(repr, shown)),
            ", ..." if num_unknown > len(shown) else "",
        )
    chunks = [
        Chunk(start, min(start + asked.sizes.queries, each["num_ids"]), uri, group)
        for uri, each in zip(pieces, found, strict=True)
        for group, start in enumerate(range(0, each["num_ids"], asked.sizes.queries))
    ]
    return chunks, {"num_ids": num_ids, "num_unknown": num_unknown, "unknown": shown}


def find_ids(table: EntityTable, uri: str, group_rows: int) -> dict[str, Any]:
    """Add to the ids of a file the numbers of their entities; a Dask task.

    Returns counts, and the first unknown ids. A task that runs again finds the same.
    """
    ids = given.read_piece(uri)["id"].combine_chunks()
    numbers = table.find(ids)
    with storage.atomic_output(uri) as stream:
        pq.write_table(pa.table([ids, pa.array(numbers)], schema=FOUND), stream, row_group_size=group_rows)
    unknown = pc.filter(ids, pa.array(numbers == UNKNOWN))
    return {"num_ids": len(ids), "num_unknown": len(unknown), "unknown": unknown[:_SHOWN].to_pylist()}


def _scores(
    config: Config,
    question: Question,
    inputs: Inputs,
    tables: dict[str, EntityTable],
    folder: str,
    client: Client,
) -> tuple[dict[str, Any], list[str]]:
    """Write the scores of all pairs; return figures and files."""
    given_uri = question.pairs or ""
    names = relation_names(config)
    dimension = max(table.dimension for table in tables.values())
    sizes = sizes_for(question.memory_bytes, dimension, 1, 1)
    pairs = map(partial(_checked, names=names, uri=given_uri), given.iter_pairs(given_uri))
    pieces = given.cut(pairs, storage.join(folder, _GIVEN), sizes.pairs, question.memory_bytes // 4)
    if not pieces:
        raise ConfigError(f"--pairs {given_uri}: expected pairs, found none")
    asked = AskedPairs(config, inputs, question.side, tables, question.relation or names[0])
    files = _file_uris(folder, len(pieces))
    arguments = [(asked, piece, uri) for piece, uri in zip(pieces, files, strict=True)]
    written = run_tasks(client, write_scores, arguments, description="scoring pairs", unit="files")
    sums = {key: sum(each[key] for each in written) for key in ("num_pairs", "num_without_score")}
    if sums["num_without_score"]:
        log.warning(
            "predict: %d of %d pairs have no score: the run does not know an id of theirs",
            sums["num_without_score"],
            sums["num_pairs"],
        )
    return sums, files


def _checked(pairs: pa.Table, names: list[str], uri: str) -> pa.Table:
    if "relation" in pairs.column_names:
        for name in pc.unique(pairs["relation"]).to_pylist():
            if name not in names:
                raise FormatError(
                    f"{uri}: column 'relation': expected one of {', '.join(names[:10])}, found {name!r}"
                )
    return pairs


def _file_uris(folder: str, count: int) -> list[str]:
    return [storage.join(folder, f"part-{number:05d}.parquet") for number in range(count)]


def _described(question: Question) -> dict[str, Any]:
    """The settings that the answers depend on."""
    if question.pairs:
        return {"pairs": question.pairs, "relation": question.relation, "side": str(question.side)}
    return {
        "ids": question.ids or "all",
        "relation": question.relation,
        "side": str(question.side),
        "k": question.k,
        "exclude_known": question.exclude_known,
        **({"calibrated": True} if question.calibrated else {}),
    }


def _inputs(config: Config, question: Question) -> list[dict[str, Any]]:
    uris = [config.entity_path, config.checkpoint_path, *filter(None, (question.ids, question.pairs))]
    if question.exclude_known:
        uris += config.edge_paths
    return record.describe_inputs(uris)
