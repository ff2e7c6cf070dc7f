"""The output files of a job, each with its input rows; all are found before the work begins.

{node_emb_dir}/                     emb_info.json names its types
    {type}/embed-00000.pt           -> {type}/embed-00000_00000.parquet
    {task}/{type}/embed-00000.pt    a multi-task run has folders of tasks beside those of types
{prediction_dir}/                   result_info.json names its types
    {type}/predict-00000.pt         -> {type}/pred.predict-00000_00000.parquet
    {task}/result_info.json ...     or each task has its own
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from graphmill import storage
from graphmill.errors import FormatError, NotFoundError
from graphmill.formats.graphstorm import saved_embeddings, saved_predictions
from graphmill.formats.graphstorm.saved_predictions import EDGE_STEMS, NODE_STEMS, ResultInfo
from graphmill.formats.graphstorm.saved_ranks import RankRows, checked_name
from remap.graphstorm.options import Options

EMBEDDINGS, PREDICTIONS = "embed", "pred.predict"


@dataclass(frozen=True)
class OutputFile:
    """One output table: rows start..stop of one rank's files."""

    root: str
    path: str  # below the root, without suffix
    ranked: RankRows
    start: int
    stop: int
    values_column: str
    ids: tuple[tuple[str, str], ...]  # columns of ids with the entity type of each

    @property
    def num_rows(self) -> int:
        """Rows of the table."""
        return self.stop - self.start


def check_folders(options: Options) -> None:
    """Refuse missing folders, before the job creates anything in them.

    Raises:
        NotFoundError: a folder is missing.
    """
    for flag, uri in (("--node-emb-dir", options.node_emb_dir), ("--prediction-dir", options.prediction_dir)):
        if uri is not None and not storage.is_dir(uri):
            raise NotFoundError(f"{flag} {uri}: there is no such folder")


def find_outputs(options: Options) -> tuple[list[OutputFile], list[str]]:
    """All output tables, and all input files, including those without rows.

    Raises:
        NotFoundError: a file is missing.
        FormatError: a file is not what its format page says, or does not fit those beside it.
    """
    groups = list(_all_groups(options))
    sources = [uri for group in groups for ranked in group.ranks for uri in ranked.uris]
    outputs = [each for group in groups for each in _cut(group, options)]
    counts = Counter(storage.join(each.root, each.path) for each in outputs)
    if twice := next((uri for uri, count in counts.items() if count > 1), None):
        raise FormatError(f"{twice}: two inputs would be written to this one table; use another --output-dir")
    return outputs, sources


@dataclass(frozen=True)
class _Group:
    """One type's files."""

    root: str
    folder: str
    stem: str
    values_column: str
    ids: tuple[tuple[str, str], ...]
    ranks: list[RankRows]


def _all_groups(options: Options) -> Iterator[_Group]:
    if options.node_emb_dir is not None:
        yield from _embeddings(options, options.node_emb_dir)
    if options.prediction_dir is not None:
        root = options.prediction_dir
        has_info = storage.exists(saved_predictions.result_info_uri(root))
        tasks = [] if has_info or options.pred_etypes or options.pred_ntypes else _tasks_with_results(root)
        for task in tasks or [""]:
            yield from _predictions(options, root, task)


def _embeddings(options: Options, root: str) -> Iterator[_Group]:
    if not options.with_shared_fs and not storage.exists(saved_embeddings.emb_info_uri(root)):
        # Rank 0 alone writes the JSON, on its own machine.
        types, world_size, dimensions = tuple(_folders(root)), None, {}
    else:
        emb_info = saved_embeddings.read_emb_info(root)
        types, dimensions = emb_info.entity_types, dict(emb_info.dimensions)
        world_size = emb_info.world_size if options.with_shared_fs else None
    types_by_task = {
        task: [each for each in types if _has_embeddings(storage.join(root, task, each))]
        for task in _folders(root)
        if task not in types
    }
    for task, there in {"": types, **types_by_task}.items():
        place = storage.join(root, task) if task else root
        for entity_type in there:
            ranks = saved_embeddings.list_ranks(
                place, entity_type, world_size, None if task else dimensions.get(entity_type)
            )
            folder = storage.join(task, entity_type) if task else entity_type
            yield _Group(
                options.output_dir or root, folder, EMBEDDINGS, "emb", (("nid", entity_type),), ranks
            )


def _predictions(options: Options, root: str, task: str) -> Iterator[_Group]:
    place = storage.join(root, task) if task else root
    named = ResultInfo(
        tuple(checked_name(each, "--pred-ntypes") for each in options.pred_ntypes), options.pred_etypes
    )
    found = (
        saved_predictions.read_result_info(place)
        if storage.exists(saved_predictions.result_info_uri(place)) or named == ResultInfo()
        else ResultInfo()
    )
    world_size = found.world_size if options.with_shared_fs else None
    output_root = options.output_dir or root
    for entity_type in named.entity_types or (() if named.edge_types else found.entity_types):
        folder = saved_predictions.node_folder(place, entity_type)
        ranks = saved_predictions.list_ranks(folder, NODE_STEMS, world_size)
        below = storage.join(task, entity_type) if task else entity_type
        yield _Group(output_root, below, PREDICTIONS, "pred", (("nid", entity_type),), ranks)
    for edge_type in named.edge_types or (() if named.entity_types else found.edge_types):
        folder = saved_predictions.edge_folder(place, edge_type)
        ranks = saved_predictions.list_ranks(folder, EDGE_STEMS, world_size)
        name = storage.name(folder)
        below = storage.join(task, name) if task else name
        ids = (("src_nid", edge_type[0]), ("dst_nid", edge_type[2]))
        yield _Group(output_root, below, PREDICTIONS, "pred", ids, ranks)


def _cut(group: _Group, options: Options) -> Iterator[OutputFile]:
    for ranked in group.ranks:
        step = options.output_chunk_size or max(ranked.num_rows, 1)
        for chunk, start in enumerate(range(0, ranked.num_rows, step)):
            name = f"{group.stem}-{ranked.rank:05d}_{chunk:05d}"
            yield OutputFile(
                group.root,
                storage.join(group.folder, name),
                ranked,
                start,
                min(start + step, ranked.num_rows),
                group.values_column,
                group.ids,
            )


def _has_embeddings(folder: str) -> bool:
    """Whether the folder holds a type's embeddings, rather than predictions, models or tables."""
    stems = (f"{saved_embeddings.EMBED}-", f"{saved_embeddings.NIDS}-")
    names = [storage.name(entry.uri) for entry in storage.list_dir(folder)]
    return any(name.startswith(stems) and name.endswith(".pt") for name in names)


def _folders(uri: str) -> list[str]:
    return [storage.name(entry.uri) for entry in storage.list_dir(uri) if entry.is_dir]


def _tasks_with_results(root: str) -> list[str]:
    return [
        task
        for task in _folders(root)
        if storage.exists(saved_predictions.result_info_uri(storage.join(root, task)))
    ]
