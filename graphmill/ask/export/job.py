"""Vectors of a run in another format, and maybe smaller: a folder that other systems load.

{to}/                           replaced as a whole, once every file is written and the loss is measured
    {type}/...                  ids and vectors; see `FORMATS`
    {type}/_scales.npy, _centroids.npy
    _model.json                 how to decode and to score; see `model`
    _relations.parquet          parameters of the relations' operators
    _export.json                what was asked, sizes, and the loss
    _checksums.xxh128           checksums of the files
    _SUCCESS
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from distributed import Client

from graphmill import storage
from graphmill.ask.entities import EntityTable, EntityTables, read_tables
from graphmill.ask.evaluate import job as evaluation
from graphmill.ask.export import faiss_index, fitting, loss, model
from graphmill.ask.export.codecs import PRECISIONS
from graphmill.ask.export.settings import ExportOptions, Precision
from graphmill.ask.export.tables import write_arrow, write_npy, write_parquet
from graphmill.ask.export.text import finish_projector, write_projector, write_word2vec
from graphmill.ask.relation import RELATIONS
from graphmill.ask.run import TrainedRun
from graphmill.config import Config
from graphmill.errors import ConfigError
from graphmill.model import comparators
from graphmill.model.built_in import COMPARATORS
from graphmill.model.operators import operator_of
from graphmill.run import fingerprints
from graphmill.run.lock import NO_CLAIM, Claim
from graphmill.run.output_checks import check_result_folder
from graphmill.run.work import Made, Work, make_result
from graphmill.storage import Checksums
from graphmill.storage.checksums import of_bytes

RECORD = "_export.json"

log = logging.getLogger("graphmill")

_TEXT: tuple[Precision, ...] = ("float32", "float16")

Write = Callable[[fitting.Source, int, str], Checksums]
Finish = Callable[[str, Sequence[fitting.Source]], Checksums]


@dataclass(frozen=True)
class Format:
    """One format.

    Attributes:
        write: writes a partition of a source to a folder; returns checksums of its files.
        names: pattern of the names of its files.
        is_whole: whether a type is one piece, not one for each partition.
        precisions: what it can hold.
        holds_scales: whether it can hold a scale of each row.
        others: names of the files for all types together, which `finish` writes.
        finish: writes the files for all types together, if there are any; returns their checksums.
    """

    write: Write
    names: str
    is_whole: bool = False
    precisions: tuple[Precision, ...] = PRECISIONS
    holds_scales: bool = True
    others: tuple[str, ...] = ()
    finish: Finish | None = None


_PART = r"part-[0-9]{5,}"

FORMATS = {
    "parquet": Format(write_parquet, rf"{_PART}\.parquet"),
    "npy": Format(write_npy, rf"{_PART}(?:\.scale)?\.npy|{_PART}\.ids\.parquet"),
    "arrow": Format(write_arrow, rf"{_PART}\.arrow"),
    "faiss": Format(faiss_index.write, r"vectors\.faiss|ids\.parquet", is_whole=True, holds_scales=False),
    "word2vec": Format(write_word2vec, r"vectors\.txt", is_whole=True, precisions=_TEXT),
    "tensorboard-projector": Format(
        write_projector,
        r"vectors\.tsv|metadata\.tsv",
        is_whole=True,
        precisions=_TEXT,
        others=("projector_config.json", "projector_config.pbtxt"),
        finish=finish_projector,
    ),
}


def check(config: Config, options: ExportOptions, to: str) -> None:
    """Refuse wrong options before anything is started or written.

    Raises:
        ConfigError: there is no such type, the format cannot hold the precision, or the folder holds others'
            files.
        NotFoundError: there is no checkpoint, or no raw ids.
    """
    kind = FORMATS[options.format]
    written = [name for every in FORMATS.values() for name in (every.names, *every.others)]
    check_result_folder(to, RECORD, "|".join([*written, *fitting.CODEC_FILES, model.MODEL, RELATIONS]))
    for name in options.types:
        if name not in config.entities:
            raise ConfigError(f"--types: {name!r} is not among the entities: {', '.join(config.entities)}")
    if options.precision not in kind.precisions:
        raise ConfigError(
            f"--format {options.format}: holds {' and '.join(kind.precisions)}, not --precision "
            f"{options.precision}; take parquet, npy, arrow or faiss"
        )
    if options.format == "faiss":
        _check_faiss(config)
    TrainedRun.chosen(config)
    if _is_measured(options) and (reason := loss.obstacle(config, to)):
        log.warning("export: the loss cannot be measured: %s", reason)


def _check_faiss(config: Config) -> None:
    faiss_index.import_faiss()
    comparator = COMPARATORS.get(config.comparator)
    if config.bias or not comparator:
        raise ConfigError(
            f"--format faiss: expected the comparator {' or '.join(COMPARATORS)} without bias, found "
            f"{config.comparator}{' with bias' if config.bias else ''}; take another format"
        )
    others = {name for relation in config.relations if not operator_of(name := relation.operator).is_linear}
    if comparator.is_unit and others:
        raise ConfigError(
            f"--format faiss: for the comparator {config.comparator} an index holds vectors of length 1, and "
            f"the operator {', '.join(sorted(others))} needs their lengths; take another format"
        )


def _is_measured(options: ExportOptions) -> bool:
    return options.is_measured and options.precision != "float32"


def run(
    config: Config, options: ExportOptions, to: str, client: Client, claim: Claim = NO_CLAIM
) -> dict[str, Any]:
    """Write the export, or go on with one that was stopped; return the figures, which `_export.json` has too.

    Raises:
        ConfigError: an id does not suit the format.
        FormatError: checkpoint or raw ids are damaged or do not fit each other, or a number is too large.
    """
    trained = TrainedRun.chosen(config)
    made_from = _made_from(trained, options)
    if storage.read_marker(to) == made_from:
        log.info("export: %s is finished, with the same settings and inputs", to)
        figures: dict[str, Any] = storage.read_json(storage.join(to, RECORD))
        return figures
    make = partial(_make, trained, options, claim)
    return make_result("export", to, RECORD, made_from, make, client, claim)


def _made_from(trained: TrainedRun, options: ExportOptions) -> dict[str, Any]:
    config = trained.config
    uris = [config.entity_path, trained.checkpoint_path]
    if options.format == "tensorboard-projector":
        uris += config.edge_paths
    if _is_measured(options):
        uris += evaluation.input_uris(config)
    return {
        "export": options.model_dump(mode="json") | {"checkpoint_version": trained.version},
        "inputs": fingerprints.describe_inputs(dict.fromkeys(uris)),
        **({"evaluate": config.evaluate.result_settings()} if _is_measured(options) else {}),
    }


def _make(trained: TrainedRun, options: ExportOptions, claim: Claim, work: Work) -> Made:
    config = trained.config
    types = options.types or tuple(config.entities)
    tables = read_tables(trained, types, work.client)
    folder, kind = work.folder, FORMATS[options.format]
    sources = {name: _source(config, options, table, work) for name, table in tables.items()}
    tasks = {
        f"{storage.file_name(name)}-{partition}": (kind, source, partition, folder)
        for name, source in sources.items()
        for partition in range(1 if kind.is_whole else len(source.table.parts))
    }
    written = work.run_tasks(write_piece, tasks, description="exporting", unit="pieces")
    checksums = {uri: checksum for piece in written for uri, checksum in piece["files"].items()}
    if kind.finish is not None:
        checksums |= kind.finish(folder, list(sources.values()))
    of_codecs = {name: fitting.table_uris(folder, name, options.precision) for name in sources}
    of_tables = [uri for codec in of_codecs.values() for uri in codec.values()]
    checksums |= {uri: of_bytes(storage.read_bytes(uri)) for uri in of_tables}
    model.write(trained, list(sources.values()), of_codecs, options.format, folder, checksums)
    figures = {
        "precision": options.precision,
        "format": options.format,
        "checkpoint_version": trained.version,
        "types": _sizes(written, sources, of_codecs),
    }
    if options.precision != "float32":
        figures["loss"] = _loss(trained, options, tables, sources, work, claim)
    return figures, checksums


def write_piece(kind: Format, source: fitting.Source, partition: int, folder: str) -> dict[str, Any]:
    """Write a partition, or a whole type; return the type, checksums and bytes. A Dask task."""
    files = kind.write(source, partition, folder)
    return {"entity_type": source.entity_type, "files": files, "bytes": _size_of(files)}


def _size_of(uris: Iterable[str]) -> int:
    return sum(status.size_bytes for uri in uris if (status := storage.status(uri)))


def _source(config: Config, options: ExportOptions, table: EntityTable, work: Work) -> fitting.Source:
    """The vectors of a type with their codec, which is fitted once."""
    comparator = config.comparator if options.format == "faiss" else "dot"  # which takes vectors as they are
    prepare = partial(comparators.prepare, comparator, False)
    codec = fitting.fit(
        work.client,
        work.folder,
        table,
        options.precision,
        options.num_bytes,
        prepare,
        has_scale=FORMATS[options.format].holds_scales,
    )
    limit = options.limit if options.format == "tensorboard-projector" else table.num_entities
    return fitting.Source(table, codec, prepare, limit, options.escape_ids)


def _sizes(
    written: Sequence[Mapping[str, Any]],
    sources: Mapping[str, fitting.Source],
    of_codecs: Mapping[str, Mapping[str, str]],
) -> dict[str, Any]:
    """Rows and bytes of each type; `vector_bytes` are without ids and tables."""
    sizes = {}
    for name, source in sources.items():
        own = [piece for piece in written if piece["entity_type"] == name]
        num_rows, codec = min(source.limit, source.table.num_entities), source.codec
        row_bytes = codec.width * codec.dtype.itemsize + (2 if codec.has_scale else 0)
        sizes[name] = {
            "num_rows": num_rows,
            "dimension": source.table.dimension,
            "num_files": sum(len(piece["files"]) for piece in own),
            "file_bytes": sum(piece["bytes"] for piece in own),
            "table_bytes": _size_of(of_codecs[name].values()),
            "vector_bytes": num_rows * row_bytes,
            "float32_bytes": num_rows * source.table.dimension * 4,
        }
    return sizes


def _loss(
    trained: TrainedRun,
    options: ExportOptions,
    tables: EntityTables,
    sources: Mapping[str, fitting.Source],
    work: Work,
    claim: Claim,
) -> dict[str, Any]:
    """The measured loss, or the reason why it is not there."""
    config = trained.config
    reason = loss.obstacle(config, work.uri()) if options.is_measured else "--no-loss"
    if reason:
        return {"not_measured": reason}

    def measured() -> dict[str, Any]:
        others = [name for name in config.entities if name not in tables]
        every = {**tables, **(read_tables(trained, others) if others else {})}
        return loss.measure(trained, every, sources, work.uri("loss"), work.client, claim)

    return work.once("loss", measured)
