"""Output tables of a job and their input rows, found before the work begins.

{node_emb_dir}/                     emb_info.json names its types
    {type}/embed-00000.pt           -> {type}/embed-00000_00000.parquet
    embed_dict.hdf5                 -> {type}/embed-00000_00000.parquet, of each type
    {task}/{type}/embed-00000.pt    a multi-task run has folders of tasks too
{prediction_dir}/                   result_info.json names its types
    {type}/predict-00000.pt         -> {type}/pred.predict-00000_00000.parquet
    {task}/result_info.json ...     or each task has its own
"""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from graphmill import storage
from graphmill.checkpoints.graphstorm import saved_embeddings, saved_ranks
from graphmill.checkpoints.graphstorm.saved_ranks import (
    EDGE_STEMS,
    NODE_STEMS,
    PREDICT,
    RankRows,
    ResultInfo,
    checked_name,
    list_ranks,
)
from graphmill.errors import ConfigError, FormatError, NotFoundError
from remap.graphstorm.options import GraphStormOptions

log = logging.getLogger("graphmill")

Ids = tuple[tuple[str, str], ...]  # columns of ids with the entity type of each column

STEMS = {"emb": "embed", "pred": "pred.predict"}  # beginnings of file names, by the column of values


@dataclass(frozen=True)
class OutputFile:
    """One output table: rows start..stop of one rank's files."""

    root: str
    path: str  # below the root, without suffix
    ranked: RankRows
    start: int
    stop: int
    values_column: str
    ids: Ids

    @property
    def num_rows(self) -> int:
        """Rows of the table."""
        return self.stop - self.start


def check_folders(options: GraphStormOptions) -> None:
    """Refuse wrong folders, before the job creates anything in them."""
    if options.output_dir and storage.contains(options.node_id_mapping, options.output_dir):
        raise ConfigError(
            f"--output-dir {options.output_dir}: it lies among the maps of --node-id-mapping, for which "
            "later jobs would take the tables; choose another folder"
        )
    for flag, uri in (("--node-emb-dir", options.node_emb_dir), ("--prediction-dir", options.prediction_dir)):
        if uri is not None and not storage.is_dir(uri):
            raise NotFoundError(f"{flag} {uri}: there is no such folder")


def find_outputs(options: GraphStormOptions) -> tuple[list[OutputFile], list[str]]:
    """Find all output tables, and all input files, including input files without rows."""
    files: list[OutputFile] = []
    if options.node_emb_dir is not None:
        files += _embeddings(options, options.node_emb_dir)
    if options.prediction_dir is not None:
        root, tasks = options.prediction_dir, [""]  # "" for the root itself
        if not (_has_results(root) or options.pred_etypes or options.pred_ntypes):
            tasks = [task for task in _folders(root) if _has_results(storage.join(root, task))] or [""]
        for task in tasks:
            files += _predictions(options, root, task)
    outputs = [file for file in files if file.num_rows]
    counts = Counter(storage.join(output.root, output.path) for output in outputs)
    if twice := next((uri for uri, count in counts.items() if count > 1), None):
        raise FormatError(f"{twice}: two inputs would be written to this one table; use another --output-dir")
    return outputs, list(dict.fromkeys(uri for file in files for uri in file.ranked.uris))


def _embeddings(options: GraphStormOptions, root: str) -> Iterator[OutputFile]:
    if options.with_shared_fs or storage.exists(saved_embeddings.emb_info_uri(root)):
        info = saved_embeddings.read_emb_info(root)
    else:  # rank 0 alone writes the JSON, on its own machine
        info = saved_embeddings.EmbInfo(tuple(_folders(root)), None, {})
    types, world_size = info.entity_types, info.world_size if options.with_shared_fs else None
    places = [("", name) for name in types]
    for task in _folders(root):
        if task not in types:
            places += [(task, name) for name in types if _has_embeddings(storage.join(root, task, name))]
    for task, entity_type in places:
        dimension = None if task else info.dimensions.get(entity_type)
        ranks = saved_embeddings.list_ranks(
            _join(root, task), entity_type, world_size, dimension, is_hdf5=info.is_hdf5 and not task
        )
        yield from _tables(options, root, _join(task, entity_type), "emb", (("nid", entity_type),), ranks)


def _predictions(options: GraphStormOptions, root: str, task: str) -> Iterator[OutputFile]:
    place = _join(root, task)
    entity_types = tuple(checked_name(ntype, "--pred-ntypes") for ntype in options.pred_ntypes)
    edge_types = options.pred_etypes
    is_named = bool(entity_types or edge_types)
    info = ResultInfo()
    if _has_results(place):
        info = saved_ranks.read_result_info(place)
    elif not is_named:
        uri = saved_ranks.result_info_uri(place)
        raise NotFoundError(f"{uri}: there is no such file; give the types: --pred-ntypes, --pred-etypes")
    if not is_named:
        entity_types, edge_types = info.entity_types, info.edge_types
    types: list[tuple[str, tuple[str, ...], Ids]] = [
        (storage.join(place, name), NODE_STEMS, (("nid", name),)) for name in entity_types
    ]
    for edge_type in edge_types:
        folder = saved_ranks.edge_folder(place, edge_type)
        types.append((folder, EDGE_STEMS, (("src_nid", edge_type[0]), ("dst_nid", edge_type[2]))))
    world_size = info.world_size if options.with_shared_fs else None
    for folder, stems, ids in types:
        if is_named and not storage.is_dir(folder):
            log.warning("remap: %s: there is no such folder; the type is skipped", folder)
            continue
        ranks = list_ranks(folder, PREDICT, stems, world_size)
        yield from _tables(options, root, _join(task, storage.name(folder)), "pred", ids, ranks)


def _tables(
    options: GraphStormOptions,
    root: str,
    folder: str,
    values_column: str,
    ids: Ids,
    ranks: Sequence[RankRows],
) -> Iterator[OutputFile]:
    """The tables of one type; a rank without rows has a table without rows, which nobody writes."""
    for ranked in ranks:
        step = options.output_chunk_size or max(ranked.num_rows, 1)
        for chunk, start in enumerate(range(0, max(ranked.num_rows, 1), step)):
            path = storage.join(folder, f"{STEMS[values_column]}-{ranked.rank:05d}_{chunk:05d}")
            stop = min(start + step, ranked.num_rows)
            yield OutputFile(options.output_dir or root, path, ranked, start, stop, values_column, ids)


def _has_embeddings(folder: str) -> bool:
    """Tell whether the folder holds a type's embeddings, rather than predictions, models or tables."""
    stems = (f"{saved_embeddings.EMBED}-", f"{saved_embeddings.NIDS}-")
    names = [storage.name(entry.uri) for entry in storage.list_dir(folder)]
    return any(name.startswith(stems) and name.endswith(".pt") for name in names)


def _has_results(folder: str) -> bool:
    return storage.exists(saved_ranks.result_info_uri(folder))


def _folders(uri: str) -> list[str]:
    return [storage.name(entry.uri) for entry in storage.list_dir(uri) if entry.is_dir]


def _join(folder: str, name: str) -> str:
    return storage.join(folder, name) if folder and name else folder or name
