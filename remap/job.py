"""Checkpoint + raw ids -> embeddings keyed by raw id: one Dask task per partition, one commit for the folder.

At most `batch_rows` rows of a partition are in memory; of PyTorch-BigGraph's JSON list of names, all raw ids.

embeddings/                             replaced as a whole, once every row is written and counted
    {type}/part-{partition:05d}.parquet, or with rows_per_file part-{partition:05d}_{number:05d}.parquet
    _checksums.xxh128                   checksums of the files
"""

import json
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from distributed import Client

from graphmill import storage
from graphmill.ask import given
from graphmill.ask.earlier import check_earlier
from graphmill.ask.entities import MeasuredPartition, checked_rows, measured
from graphmill.ask.relation import RELATIONS, write_relation_parameters
from graphmill.ask.run import TrainedRun, vectors_digest
from graphmill.checkpoints import Floats
from graphmill.checkpoints.id_maps import INTEGERS
from graphmill.cluster import run_tasks
from graphmill.config import Config
from graphmill.config.sections.remap import RemapConfig
from graphmill.display import readable
from graphmill.errors import ConfigError, FormatError
from graphmill.formats import remapped
from graphmill.formats.parquet import bounds, open_parquet
from graphmill.run import fingerprints
from graphmill.run.fingerprints import VECTORS
from graphmill.run.job import Estimate, GraphSize
from graphmill.run.lock import NO_CLAIM, Claim
from graphmill.run.output_checks import check_result_folder
from graphmill.run.trained_with import changes_in_errors
from graphmill.run.work import complete
from graphmill.storage import Checksums
from remap.align import fit_alignment
from remap.sources import check_maps, open_sources, select_types
from remap.tables import TableOptions, count_rows, open_table, values_type

Rows = tuple[pa.Array, Floats]

_OURS = rf"part-[0-9]{{5,}}(?:_[0-9]{{5,}})?\.(?:parquet|csv)|{RELATIONS}"


def check(config: Config, coming: Collection[str] = ()) -> str:
    """Refuse wrong settings before anything changes; earlier stages will write the folders `coming`."""
    settings = config.remap
    select_types(config, settings)
    if settings.align_to is not None:
        if settings.relations:
            raise ConfigError(
                "remap.align_to turns the vectors, and the parameters of relations would not fit them; found "
                "remap.relations: true too; remove one of the two"
            )
        check_earlier("remap.align_to", settings.align_to, config, select_types(config, settings))
    if settings.id_maps:
        check_maps(config, settings)
    elif config.checkpoint_path not in coming:
        TrainedRun.chosen(config)
    return ""


def estimate(config: Config, size: GraphSize | None) -> Estimate:
    """Estimate the size of the embeddings by raw id."""
    if size is None:
        return Estimate({})
    num_bytes = sum(count * 4 * config.entity_dimension(name) for name, count in size.num_entities.items())
    return Estimate({"remap, vectors": readable.size(num_bytes)}, size)


def run(config: Config, client: Client, claim: Claim = NO_CLAIM) -> dict[str, Any]:
    """Write the embedding of every entity under its raw id; return the rows and files of each type.

    The old folder stays until the new folder is complete.
    """
    settings = config.remap
    check_outputs(config)
    with open_sources(config, settings) as (trained, num_partitions, left_out):
        result = _run(config, trained, num_partitions, client, claim)
    return result | ({"not_translated": left_out} if settings.id_maps else {})


def _run(
    config: Config, trained: TrainedRun, num_partitions: dict[str, int], client: Client, claim: Claim
) -> dict[str, Any]:
    settings = config.remap
    with changes_in_errors(config):
        parts = measured(trained, num_partitions, client)
    matrices: dict[int, Floats] = {}
    aligned: dict[str, Any] = {}
    if settings.align_to is not None:
        matrices, aligned = fit_alignment(client, trained, parts, settings.align_to, settings.batch_rows)
    with storage.atomic_directory(config.embedding_path) as folder:
        arguments = [(trained, part, folder, settings, matrices.get(part.dimension)) for part in parts]
        files: list[tuple[dict[str, int], Checksums]] = run_tasks(
            client, write_partition, arguments, description="remapping", unit="partitions"
        )
        checksums = {uri: checksum for _, by_uri in files for uri, checksum in by_uri.items()}
        num_written = sum(num for counts, _ in files for num in counts.values())
        if settings.ids_path is not None and not num_written:
            raise ConfigError(f"remap.ids_path: {settings.ids_path}: expected ids of the run, found none")
        if settings.relations:
            uri = storage.join(folder, RELATIONS)
            num_parameters = write_relation_parameters(trained, uri, checksums)
        complete(folder, checksums)
        claim.check()
    num_rows = dict.fromkeys(num_partitions, 0)
    for part, (counts, _) in zip(parts, files, strict=True):
        num_rows[part.entity_type] += sum(counts.values())
    return {
        "checkpoint_version": trained.version,
        "raw_ids_from": trained.id_source,
        "num_rows": sum(num_rows.values()),
        "num_files": len(checksums),
        **({"num_relation_parameters": num_parameters} if settings.relations else {}),
        **({"aligned": aligned} if aligned else {}),
        "types": {
            entity_type: {"num_rows": num, "dimension": config.entity_dimension(entity_type)}
            for entity_type, num in num_rows.items()
        },
    }


def write_partition(
    trained: TrainedRun,
    part: MeasuredPartition,
    embedding_path: str,
    settings: RemapConfig,
    matrix_DD: Floats | None = None,
) -> tuple[dict[str, int], Checksums]:
    """Write one partition's files and count their rows; return the rows and the checksum of each file.

    With `matrix_DD`, vectors are multiplied by it: a vector x becomes x matrix_DD.
    """
    rows = checked_rows(trained, part, settings.batch_rows)
    if matrix_DD is not None:
        rows = ((ids, vectors_ND @ matrix_DD) for ids, vectors_ND in rows)
    if not settings.is_standard:
        return write_custom(rows, part, embedding_path, settings)
    place, checksums = (embedding_path, part.entity_type, part.partition), Checksums()
    with remapped.new_part(*place, part.dimension, settings.compression, checksums=checksums) as writer:
        for ids, vectors_ND in rows:
            writer.append(ids, vectors_ND)
    written, uri = remapped.shape_of(*place), remapped.part_uri(*place)
    if written != (part.num_rows, part.dimension):
        raise FormatError(f"{uri}: expected {(part.num_rows, part.dimension)} as written, found {written}")
    return {uri: part.num_rows}, checksums


def write_custom(
    batches: Iterator[Rows], part: MeasuredPartition, embedding_path: str, settings: RemapConfig
) -> tuple[dict[str, int], Checksums]:
    """Write the files of one partition; return the rows of each, counted after writing, and its checksum."""
    options = TableOptions(
        settings.output_format,
        settings.output_delimiter,
        compression="zstd",
        value_compression=settings.compression,
        fixed_size_list=settings.vectors == "fixed_size_list",
    )
    kind = values_type("float32", (part.num_rows, part.dimension), options)
    schema = pa.schema(list(zip(settings.columns, (pa.string(), pa.string(), kind), strict=True)))
    if settings.ids_path:
        wanted = read_ids(settings.ids_path)
        chosen = ((rows, pc.is_in(rows[0], wanted)) for rows in batches)
        batches = (
            (ids.filter(is_wanted), vectors_ND[is_wanted.to_numpy(zero_copy_only=False)])
            for (ids, vectors_ND), is_wanted in chosen
            if is_wanted.true_count
        )
    written: dict[str, int] = {}
    checksums: Checksums = {}
    for number, rows in enumerate(split_into_files(batches, settings.rows_per_file)):
        suffix = f"_{number:05d}" if settings.rows_per_file else ""
        name = f"part-{part.partition:05d}{suffix}.{settings.output_format}"
        uri = storage.join(embedding_path, part.entity_type, name)
        with open_table(uri, schema, options, checksums) as table:
            written[uri] = 0
            for ids, vectors_ND in rows:
                table.append([ids, pa.repeat(part.entity_type, len(ids)), vectors_ND])
                written[uri] += len(ids)
        counted = count_rows(uri, options)
        if counted != written[uri]:
            raise FormatError(f"{uri}: expected {written[uri]} rows as written, found {counted}")
    return written, checksums


def split_into_files(batches: Iterator[Rows], rows_per_file: int | None) -> Iterator[Iterator[Rows]]:
    """Yield the batches of each file; the caller reads each file to its end before the next file."""
    if rows_per_file is None:
        yield batches
        return
    rest = next(batches, None)

    def one_file(room: int) -> Iterator[Rows]:
        nonlocal rest
        while rest is not None and room:
            ids, vectors_ND = rest
            yield ids[:room], vectors_ND[:room]
            rest = (ids[room:], vectors_ND[room:]) if len(ids) > room else next(batches, None)
            room -= min(room, len(ids))

    while rest is not None:
        yield one_file(rows_per_file)


def read_ids(uri: str) -> pa.Array:
    """Read the raw ids of a file or folder of ids."""
    return _read_ids(uri, json.dumps(fingerprints.describe_inputs([uri])))


@lru_cache(maxsize=1)
def _read_ids(uri: str, _files: str) -> pa.Array:
    """Read the ids; the files are a key of the cache because they may change between two runs."""
    for file in given.files(uri):
        if file.endswith(".parquet"):
            with open_parquet(file) as parquet:
                bounds.check_whole(parquet, file)  # all ids are kept
    batches = [batch["id"].combine_chunks() for batch in given.iter_ids(uri)]
    return pa.chunked_array(batches, pa.string()).combine_chunks()


def input_uris(config: Config) -> list[str]:
    """The checkpoint, and where the raw ids come from."""
    settings = config.remap
    return [
        *([] if settings.id_maps else [config.entity_path]),
        config.checkpoint_path,
        *([settings.ids_path] if settings.ids_path else []),
        *([settings.align_to] if settings.align_to else []),
        *(map_ for map_ in settings.id_maps.values() if map_ != INTEGERS),
    ]


def fingerprint(config: Config) -> dict[str, Any]:
    """Describe the settings and inputs that the embeddings depend on."""
    settings = config.remap
    num_partitions = select_types(config, settings)
    return {
        "remap": settings.result_settings(),
        "entities": {
            entity_type: {"num_partitions": num, "dimension": config.entity_dimension(entity_type)}
            for entity_type, num in num_partitions.items()
        },
        VECTORS: vectors_digest(config.checkpoint_path, settings.checkpoint_version),
        "inputs": fingerprints.describe_inputs(input_uris(config)),
    }


def output_uris(config: Config) -> list[str]:
    """The folder that the stage writes."""
    return [config.embedding_path]


written_uris = output_uris


def check_outputs(config: Config) -> None:
    """Refuse to replace a folder with other files than embeddings: these files would be lost."""
    path = config.embedding_path
    is_ours = storage.read_marker(path)  # Spark's marker is empty
    record = storage.MARKER if is_ours else storage.PUBLISHED
    check_result_folder(path, record, _OURS, "embedding_path")
