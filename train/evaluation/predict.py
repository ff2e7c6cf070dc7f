"""`python -m train predict`: scores of edges, neighbours and labels of nodes, in GraphStorm's layout.

    {output}/result_info.json
        {lhs}_{relation}_{rhs}/predict-{rank:05d}.pt  src_nids-{rank:05d}.pt  dst_nids-{rank:05d}.pt
        {type}_neighbor_{type}/...      each node with its k nearest nodes, by the cosine of their vectors
        {type}/predict-{rank:05d}.pt  predict_nids-{rank:05d}.pt    probabilities [n, C] of each label
        labels.json                     the C labels, in the order of the columns

Integer ids are those of `etl.graphstorm_maps`; `python -m remap --prediction-dir` gives the raw ids back.
A rank of edges is a bucket, a rank of nodes a partition. Memory holds one rank at a time.
"""

import itertools
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import torch
from torch import Tensor

from graphmill import storage
from graphmill.config import Config
from graphmill.errors import ConfigError, NotFoundError, suggestion
from graphmill.formats import entity_index
from graphmill.formats.graphstorm import saved_predictions
from graphmill.formats.graphstorm.saved_predictions import EDGE_STEMS, NODE_STEMS, EdgeType, ResultInfo
from graphmill.formats.parquet import bounds
from graphmill.gpu.best import Best
from graphmill.gpu.device import device_of
from graphmill.model.parameters import global_key
from graphmill.run.lock import NO_CLAIM, Claim
from graphmill.vocab import Side
from train.edges.partitions import all_buckets
from train.evaluation.queries import Numbers, Slots, Triples
from train.evaluation.ranker import gather
from train.tables.partition_files import load_embeddings_of
from train.tables.run_context import RunContext

BLOCK_ROWS = 1024  # nodes whose neighbours are searched at a time
GPU_ROWS = 1 << 20  # the same on a GPU
GPU_BYTES = 512 << 20  # vectors of candidates that a GPU takes at a time

Floats = npt.NDArray[np.float32]


class TrainedGraph:
    """The committed version of a checkpoint, ready for scores.

    Attributes:
        slots: of width 1: the integer ids of all entities.
        load: gives the embeddings of a partition.
    """

    def __init__(self, config: Config) -> None:
        """Raises NotFoundError where there is no checkpoint."""
        self.config = config
        self.context = RunContext.of_checkpoint(config, "predict with")
        self.slots = Slots(config, self.context.num_rows, self.context.num_relations, width=1)
        self.model = self.context.load_trained_model()
        self.load = load_embeddings_of(self.context)

    def nids(self, entity_type: str) -> list[Numbers]:
        """Integer ids of the nodes of each partition.

        Raises:
            ConfigError: there is no such type.
        """
        if entity_type not in self.config.entities:
            raise ConfigError(
                f"--type {entity_type}: {suggestion(entity_type, self.config.entities, 'expected one of')}"
            )
        first = self.slots.first[entity_type].tolist()
        return [np.arange(start, stop) for start, stop in itertools.pairwise(first)]

    def vectors(self, entity_type: str, partition: int) -> Tensor:
        """Vectors of a partition's nodes: embeddings plus the type's global embedding, [N, D]."""
        rows_ND = self.load(entity_type, partition)
        added_D = self.model.parameters.get(global_key(entity_type))
        return rows_ND if added_D is None else rows_ND + added_D

    def take(self, entity_type: str, partition: int, index: Numbers) -> Tensor:
        """Embeddings of some of a partition's entities: [n, D]."""
        return self.load(entity_type, partition)[torch.from_numpy(index)]

    def edge_types(self) -> list[EdgeType]:
        """(lhs type, relation, rhs type) of every relation, as folders are named."""
        names, relations = map(storage.file_name, self.context.relation_names()), self.config.relations
        if self.config.dynamic_relations:
            relations = relations * self.context.num_relations
        return [(each.lhs, name, each.rhs) for each, name in zip(relations, names, strict=True)]


def predict_edges(config: Config, split: str, output: str, claim: Claim = NO_CLAIM) -> dict[str, Any]:
    """Score every edge of a split; returns the number of edges.

    Raises:
        NotFoundError: there is no checkpoint, or no such split.
        FormatError: the edges do not fit the checkpoint.
    """
    trained = TrainedGraph(config)
    path = config.split_path(split)
    if not storage.is_dir(path):
        raise NotFoundError(f"{path}: there is no such split of edges to predict")
    buckets = all_buckets(config)
    edge_types = trained.edge_types()
    num_edges = 0
    with _new_folder(output, claim) as folder:
        for rank, bucket in enumerate(buckets):
            parts = list(trained.slots.read_bucket(path, bucket))
            edges = Triples.concatenated(parts)
            score_E = torch.cat([torch.empty(0), *(_scores(trained, part) for part in parts)]).numpy()
            for relation, edge_type in enumerate(edge_types):
                mine = edges.rel == relation
                nids = dict(zip(EDGE_STEMS, (edges.lhs[mine], edges.rhs[mine]), strict=True))
                target = saved_predictions.edge_folder(folder, edge_type)
                saved_predictions.write_rank(target, rank, nids, score_E[mine])
            num_edges += len(edges)
        saved_predictions.write_result_info(folder, ResultInfo((), tuple(edge_types), len(buckets)))
    return {"num_edges": num_edges}


def _scores(trained: TrainedGraph, triples: Triples) -> Tensor:
    """The scores of edges: [E]."""
    slots = trained.slots
    vectors = {side: gather(slots, trained.take, side, triples.rel, triples.slots(side)) for side in Side}
    score_E = torch.empty(len(triples))
    relation_E = slots.static(triples.rel)
    for relation in np.unique(relation_E).tolist():
        mine = torch.from_numpy(np.flatnonzero(relation_E == relation))
        rel = torch.from_numpy(triples.rel)[mine] if trained.config.dynamic_relations else None
        dimension = trained.config.entity_dimension(slots.types(Side.RHS)[relation])
        lhs_ED, rhs_ED = (vectors[side][mine][:, :dimension] for side in Side)
        queries_ED = trained.model.query(relation, Side.RHS, lhs_ED, rel)
        candidates_ED = trained.model.candidates(relation, Side.RHS, rhs_ED)
        score_E[mine] = trained.model.edge_scores(queries_ED, candidates_ED, Side.RHS)
    return score_E


def predict_neighbors(
    config: Config, entity_type: str, k: int, output: str, claim: Claim = NO_CLAIM
) -> dict[str, Any]:
    """Find the `k` nearest other nodes of each node, by cosine; returns the number of nodes.

    Raises:
        ConfigError: there is no such type, or it has no `k` other nodes; or num_gpus asks for a GPU and
            there is none.
    """
    nearest = partial(_nearest_on, device_of(config.num_gpus)) if config.num_gpus else _nearest
    trained = TrainedGraph(config)
    nids = trained.nids(entity_type)
    total = sum(map(len, nids))
    if not 1 <= k < total:
        raise ConfigError(f"--neighbors {k}: expected 1 to {total - 1}, as there are {total} nodes")
    edge_type = (entity_type, "neighbor", entity_type)
    with _new_folder(output, claim) as folder:
        target = saved_predictions.edge_folder(folder, edge_type)
        for rank, own in enumerate(nids):
            best_QK, nids_QK = nearest(trained, entity_type, nids, rank, k)
            columns = dict(zip(EDGE_STEMS, (np.repeat(own, k), nids_QK.reshape(-1)), strict=True))
            saved_predictions.write_rank(target, rank, columns, best_QK.reshape(-1))
        saved_predictions.write_result_info(folder, ResultInfo((), (edge_type,), len(nids)))
    return {"num_nodes": total, "num_edges": total * k}


def _nearest(
    trained: TrainedGraph, entity_type: str, nids: Sequence[Numbers], own: int, k: int
) -> tuple[Floats, Numbers]:
    """Cosines and integer ids [Q, k] of the nodes nearest to those of the partition `own`, best first."""
    queries_QD = torch.nn.functional.normalize(trained.vectors(entity_type, own))
    best_QK = torch.full((len(queries_QD), k), -torch.inf)
    nids_QK = torch.zeros(len(queries_QD), k, dtype=torch.int64)
    for partition, nids_N in enumerate(nids):
        candidates_ND = torch.nn.functional.normalize(trained.vectors(entity_type, partition))
        for start in range(0, len(queries_QD), BLOCK_ROWS):
            block = slice(start, min(start + BLOCK_ROWS, len(queries_QD)))
            score_PN = queries_QD[block] @ candidates_ND.T
            if partition == own:
                rows = torch.arange(block.stop - block.start)
                score_PN[rows, rows + start] = -torch.inf
            top = score_PN.topk(min(k, len(nids_N)))
            scores = torch.cat([best_QK[block], top.values], 1)
            ids = torch.cat([nids_QK[block], torch.from_numpy(nids_N)[top.indices]], 1)
            kept = scores.topk(k)
            best_QK[block], nids_QK[block] = kept.values, ids.gather(1, kept.indices)
    return best_QK.numpy(), nids_QK.numpy()


def _nearest_on(
    device: torch.device, trained: TrainedGraph, entity_type: str, nids: Sequence[Numbers], own: int, k: int
) -> tuple[Floats, Numbers]:
    """Find what `_nearest` finds, on a GPU, where no score is kept."""
    vectors_QD = trained.vectors(entity_type, own)
    parts = []
    for begin in range(0, len(vectors_QD), GPU_ROWS):
        end = min(begin + GPU_ROWS, len(vectors_QD))
        best = Best(torch.nn.functional.normalize(vectors_QD[begin:end].to(device)), k)
        for partition, nids_N in enumerate(nids):
            vectors_ND = trained.vectors(entity_type, partition)
            step = max(1, GPU_BYTES // (4 * vectors_ND.shape[1]))
            for start in range(0, len(vectors_ND), step):
                candidates_ND = torch.nn.functional.normalize(vectors_ND[start : start + step].to(device))
                in_both = range(max(begin, start), min(end, start + step) if partition == own else 0)
                itself = torch.tensor(in_both, dtype=torch.int64, device=device)
                best.add(candidates_ND, int(nids_N[start]), itself - begin, itself - start)
        parts.append((best.score_QK.cpu(), best.row_QK.cpu()))
    if not parts:
        return np.empty((0, k), np.float32), np.empty((0, k), np.int64)
    best_QK, nids_QK = (torch.cat(each).numpy() for each in zip(*parts, strict=True))
    return best_QK, nids_QK


def predict_labels(
    config: Config,
    entity_type: str,
    labels_uri: str,
    columns: tuple[str, str],
    output: str,
    claim: Claim = NO_CLAIM,
) -> dict[str, Any]:
    """Fit a logistic regression to the vectors of labelled nodes, and label all nodes; returns the accuracy.

    `columns` are the table's columns of raw ids and of labels.

    Raises:
        ConfigError: scikit-learn is missing, or the type; or fewer than two labels are of known nodes.
    """
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise ConfigError(
            "--labels: scikit-learn is not installed; pip install 'graphmill[classify]'"
        ) from error
    trained = TrainedGraph(config)
    nids = trained.nids(entity_type)
    raw_ids, labels = read_labels(labels_uri, columns)
    vectors_LD, label_L = _labelled(trained, entity_type, raw_ids, labels)
    names = sorted(set(label_L))
    if len(names) < 2:
        raise ConfigError(
            f"{labels_uri}: expected nodes of {entity_type!r} with two labels at least, found {len(label_L)} "
            f"such nodes with {len(names)} of them"
        )
    classifier = LogisticRegression(max_iter=1000).fit(vectors_LD, label_L)
    with _new_folder(output, claim) as folder:
        target = storage.join(folder, entity_type)
        for rank, own in enumerate(nids):
            vectors_ND = trained.vectors(entity_type, rank).numpy()
            values = classifier.predict_proba(vectors_ND) if len(own) else np.empty((0, len(names)))
            saved_predictions.write_rank(target, rank, {NODE_STEMS[0]: own}, values.astype(np.float32))
        storage.write_text(storage.join(folder, "labels.json"), json.dumps(list(classifier.classes_)) + "\n")
        saved_predictions.write_result_info(folder, ResultInfo((entity_type,), (), len(nids)))
    fitted = float(classifier.score(vectors_LD, label_L))
    return {"num_labelled": len(label_L), "labels": names, "accuracy_on_labelled": fitted}


@contextmanager
def _new_folder(output: str, claim: Claim) -> Iterator[str]:
    """The folder of predictions while it is written; only earlier predictions are replaced."""
    if storage.list_dir(output) and not storage.exists(saved_predictions.result_info_uri(output)):
        raise ConfigError(
            f"--output-dir {output}: expected a new folder or one of predictions, to be replaced"
        )
    with storage.atomic_directory(output) as folder:
        yield folder
        claim.check()


def read_labels(uri: str, columns: Sequence[str]) -> tuple[pa.Array, list[str]]:
    """Raw ids and labels of a table in parquet or CSV, without rows that lack one of them."""
    with storage.open_input(uri) as stream:
        if uri.endswith(".parquet"):
            parquet = pq.ParquetFile(stream)
            bounds.check_whole(parquet, uri)
            table = parquet.read()
        else:  # as text: the id 007 is not the number 7, and an empty cell is no label
            as_text = pacsv.ConvertOptions(
                column_types=dict.fromkeys(columns, pa.string()), null_values=[""], strings_can_be_null=True
            )
            table = pacsv.read_csv(stream, convert_options=as_text)
    for column in columns:
        if column not in table.column_names:
            raise ConfigError(f"{uri}: expected a column {column!r}, found {', '.join(table.column_names)}")
    chosen = table.select(list(columns)).drop_null()
    ids, labels = (chosen[column].cast(pa.string()).combine_chunks() for column in columns)
    if pc.count_distinct(ids).as_py() != len(ids):
        raise ConfigError(f"{uri}: expected each id of column {columns[0]!r} once, found one twice")
    return ids, labels.to_pylist()


def _labelled(
    trained: TrainedGraph, entity_type: str, raw_ids: pa.Array, labels: list[str]
) -> tuple[Floats, list[str]]:
    """Vectors [L, D] and labels [L] of the labelled nodes in the graph."""
    vectors, label_L = [], []
    for partition in range(trained.config.entities[entity_type].num_partitions):
        parts = entity_index.iter_part(trained.config.entity_path, entity_type, partition)
        ids = pa.concat_arrays([pa.array([], pa.string()), *parts])
        position_N = pc.index_in(ids, value_set=raw_ids)
        rows = np.flatnonzero(position_N.is_valid().to_numpy(zero_copy_only=False))
        if len(rows):
            vectors.append(trained.vectors(entity_type, partition).numpy()[rows])
            label_L += [labels[each] for each in position_N.drop_null().to_pylist()]
    dimension = trained.config.entity_dimension(entity_type)
    return np.concatenate([np.empty((0, dimension), np.float32), *vectors]), label_L
