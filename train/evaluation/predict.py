"""`python -m train predict`: scores of edges, neighbours and labels of nodes, in GraphStorm's layout.

    {output}/result_info.json
        {lhs}_{relation}_{rhs}/predict-{rank:05d}.pt  src_nids-{rank:05d}.pt  dst_nids-{rank:05d}.pt
        {type}_neighbor_{type}/...      each node with its k nearest nodes, by the cosine of their vectors
        {type}/predict-{rank:05d}.pt  predict_nids-{rank:05d}.pt    probabilities [n, C] of each label
        labels.json                     the C labels, in the order of the columns

Integer ids are those of `etl.graphstorm_maps`; `python -m remap --prediction-dir` gives the raw ids back.
A rank of edges is a bucket, a rank of nodes a partition. Memory holds one rank at a time.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
from graphmill.errors import ConfigError, NotFoundError
from graphmill.formats import entity_index, parquet_bounds
from graphmill.formats.graphstorm import saved_predictions
from graphmill.formats.graphstorm.saved_predictions import EDGE_STEMS, NODE_STEMS, EdgeType, ResultInfo
from graphmill.model.parameters import global_key
from graphmill.run.lock import NO_CLAIM, Claim
from graphmill.vocab import Bucket, Side
from train.edges.partitions import all_buckets
from train.evaluation.queries import Slots, Triples
from train.evaluation.ranking import gather
from train.tables.partition_files import load_embeddings_of
from train.tables.run_context import RunContext

BLOCK_ROWS = 1024  # nodes whose neighbours are searched at a time

Numbers = npt.NDArray[np.int64]


class TrainedGraph:
    """The committed version of a checkpoint, ready for scores.

    Attributes:
        first: for each entity type, the integer id of each partition's first entity, and their number.
        load: gives the embeddings of a partition.
    """

    def __init__(self, config: Config) -> None:
        """Raises NotFoundError where there is no checkpoint."""
        self.config = config
        self.context = RunContext.of_checkpoint(config, "predict with")
        self.counts = self.context.num_rows
        self.first = {name: np.cumsum([0, *rows]) for name, rows in self.counts.items()}
        self.model = self.context.load_trained_model()
        self.load = load_embeddings_of(self.context)

    def vectors(self, entity_type: str, partition: int) -> Tensor:
        """Vectors of a partition's nodes: embeddings plus the type's global embedding, [N, D]."""
        rows_ND = self.load(entity_type, partition)
        added_D = self.model.parameters.get(global_key(entity_type))
        return rows_ND if added_D is None else rows_ND + added_D

    def edge_types(self) -> list[EdgeType]:
        """(lhs type, relation, rhs type) of every relation."""
        names, relations = self.context.relation_names(), self.config.relations
        if self.config.dynamic_relations:
            relations = relations * len(names)
        return [(each.lhs, name, each.rhs) for each, name in zip(relations, names, strict=True)]


def predict_edges(config: Config, split: str, output: str, claim: Claim = NO_CLAIM) -> dict[str, Any]:
    """Score every edge of a split; return the number of edges.

    Raises:
        NotFoundError: there is no checkpoint, or no such split.
        FormatError: the edges do not fit the checkpoint.
    """
    trained = TrainedGraph(config)
    path = config.split_path(split)
    if not storage.is_dir(path):
        raise NotFoundError(f"{path}: there is no such split of edges to predict")
    slots = Slots(config, trained.counts, trained.context.num_relations, width=1)
    buckets = all_buckets(config)
    edge_types = trained.edge_types()
    num_edges = 0
    with _new_folder(output, claim) as folder:
        for rank, bucket in enumerate(buckets):
            scored = _score_bucket(trained, slots, path, bucket)
            for relation, edge_type in enumerate(edge_types):
                mine = scored["rel"] == relation
                nids = {"src_nids": scored["lhs"][mine], "dst_nids": scored["rhs"][mine]}
                target = saved_predictions.edge_folder(folder, edge_type)
                saved_predictions.write_rank(target, rank, nids, scored["score"][mine])
            num_edges += len(scored["rel"])
        result_info = ResultInfo((), tuple(edge_types), len(buckets))
        saved_predictions.write_result_info(folder, result_info)
    return {"num_edges": num_edges}


def _score_bucket(
    trained: TrainedGraph, slots: Slots, path: str, bucket: Bucket
) -> dict[str, npt.NDArray[Any]]:
    """Integer ids, relations and scores of a bucket's edges, [E] each, in their order."""
    parts: dict[str, list[npt.NDArray[Any]]] = {
        "lhs": [np.empty(0, np.int64)],
        "rel": [np.empty(0, np.int64)],
        "rhs": [np.empty(0, np.int64)],
        "score": [np.empty(0, np.float32)],
    }
    for triples in slots.read_bucket(path, bucket):  # of width 1, slots are integer ids
        for name in ("lhs", "rel", "rhs"):
            parts[name].append(getattr(triples, name))
        parts["score"].append(_scores(trained, slots, triples).numpy())
    return {name: np.concatenate(columns) for name, columns in parts.items()}


def _scores(trained: TrainedGraph, slots: Slots, triples: Triples) -> Tensor:
    """The scores of edges: [E]."""
    vectors = {side: gather(slots, trained.load, side, triples.rel, triples.slots(side)) for side in Side}
    score_E = torch.empty(len(triples))
    relation_E = slots.static(triples.rel)
    for relation in np.unique(relation_E).tolist():
        mine = torch.from_numpy(np.flatnonzero(relation_E == relation))
        rel = torch.from_numpy(triples.rel)[mine] if trained.config.dynamic_relations else None
        dimension = trained.config.entity_dimension(slots.types(Side.RHS)[relation])
        lhs_ED, rhs_ED = (vectors[side][mine][:, :dimension] for side in Side)
        queries_ED = trained.model.query(relation, Side.RHS, lhs_ED, rel)
        candidates_ED = trained.model.candidates(relation, Side.RHS, rhs_ED)
        score_E[mine] = trained.model.edge_scores(queries_ED, candidates_ED)
    return score_E


def predict_neighbors(
    config: Config, entity_type: str, k: int, output: str, claim: Claim = NO_CLAIM
) -> dict[str, Any]:
    """Find each node's `k` nearest of its type, by cosine, itself left out; the number of nodes.

    Raises:
        ConfigError: there is no such type, or it has not `k` others.
    """
    trained = TrainedGraph(config)
    _check_type(config, entity_type)
    total = int(trained.first[entity_type][-1])
    if not 1 <= k < total:
        raise ConfigError(f"--neighbors {k}: expected 1 to {total - 1}, as there are {total} nodes")
    edge_type = (entity_type, "neighbor", entity_type)
    num_partitions = len(trained.counts[entity_type])
    with _new_folder(output, claim) as folder:
        target = saved_predictions.edge_folder(folder, edge_type)
        for rank in range(num_partitions):
            queries_QD = torch.nn.functional.normalize(trained.vectors(entity_type, rank))
            best, nids = _nearest(trained, entity_type, rank, queries_QD, k)
            own = np.arange(len(best)) + trained.first[entity_type][rank]
            columns = dict(zip(EDGE_STEMS, (np.repeat(own, k), nids.reshape(-1)), strict=True))
            saved_predictions.write_rank(target, rank, columns, best.reshape(-1))
        saved_predictions.write_result_info(folder, ResultInfo((), (edge_type,), num_partitions))
    return {"num_nodes": total, "num_edges": total * k}


def _nearest(
    trained: TrainedGraph, entity_type: str, own: int, queries_QD: Tensor, k: int
) -> tuple[npt.NDArray[np.float32], Numbers]:
    """Cosines and integer ids [Q, k] of the nearest nodes, best first."""
    best_QK = torch.full((len(queries_QD), k), -torch.inf)
    nids_QK = torch.zeros(len(queries_QD), k, dtype=torch.int64)
    for partition, num_rows in enumerate(trained.counts[entity_type]):
        candidates_ND = torch.nn.functional.normalize(trained.vectors(entity_type, partition))
        first = int(trained.first[entity_type][partition])
        for start in range(0, len(queries_QD), BLOCK_ROWS):
            block = slice(start, min(start + BLOCK_ROWS, len(queries_QD)))
            score_PN = queries_QD[block] @ candidates_ND.T
            if partition == own:
                rows = torch.arange(block.stop - block.start)
                score_PN[rows, rows + start] = -torch.inf
            top = score_PN.topk(min(k, num_rows))
            scores = torch.cat([best_QK[block], top.values], 1)
            ids = torch.cat([nids_QK[block], top.indices + first], 1)
            kept = scores.topk(k)
            best_QK[block], nids_QK[block] = kept.values, ids.gather(1, kept.indices)
    return best_QK.numpy(), nids_QK.numpy()


def predict_labels(
    config: Config,
    entity_type: str,
    labels_uri: str,
    columns: tuple[str, str],
    output: str,
    claim: Claim = NO_CLAIM,
) -> dict[str, Any]:
    """Fit a logistic regression to the labelled nodes' vectors and apply it to all; how well it fits.

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
    _check_type(config, entity_type)
    raw_ids, labels = _read_labels(labels_uri, columns)
    vectors_LD, label_L = _labelled(trained, entity_type, raw_ids, labels)
    names = sorted(set(label_L))
    if len(names) < 2:
        raise ConfigError(
            f"{labels_uri}: expected nodes of {entity_type!r} with two labels at least, found {len(label_L)} "
            f"such nodes with {len(names)} of them"
        )
    classifier = LogisticRegression(max_iter=1000).fit(vectors_LD, label_L)
    num_partitions = len(trained.counts[entity_type])
    with _new_folder(output, claim) as folder:
        for rank in range(num_partitions):
            vectors_ND = trained.vectors(entity_type, rank).numpy()
            shape = (0, len(names))
            values = classifier.predict_proba(vectors_ND) if len(vectors_ND) else np.empty(shape)
            nids = np.arange(len(vectors_ND)) + trained.first[entity_type][rank]
            target = saved_predictions.node_folder(folder, entity_type)
            saved_predictions.write_rank(target, rank, {NODE_STEMS[0]: nids}, values.astype(np.float32))
        storage.write_text(storage.join(folder, "labels.json"), json.dumps(list(classifier.classes_)) + "\n")
        saved_predictions.write_result_info(folder, ResultInfo((entity_type,), (), num_partitions))
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


def _check_type(config: Config, entity_type: str) -> None:
    if entity_type not in config.entities:
        raise ConfigError(f"--type {entity_type}: expected one of {', '.join(config.entities)}")


def _read_labels(uri: str, columns: Sequence[str]) -> tuple[pa.Array, list[str]]:
    with storage.open_input(uri) as stream:
        # as text: the id 007 of a CSV file is not the number 7, and an empty cell is no label
        as_text = pacsv.ConvertOptions(
            column_types=dict.fromkeys(columns, pa.string()), null_values=[""], strings_can_be_null=True
        )
        is_parquet = uri.endswith(".parquet")
        if is_parquet:
            parquet = pq.ParquetFile(stream)
            parquet_bounds.check_whole(parquet, uri)
            table = parquet.read()
        else:
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
) -> tuple[npt.NDArray[np.float32], list[str]]:
    """Vectors [L, D] and labels [L] of the labelled nodes in the graph."""
    vectors, label_L = [], []
    for partition, ids in enumerate(_id_parts(trained, entity_type)):
        position_N = pc.index_in(ids, value_set=raw_ids)
        rows = np.flatnonzero(position_N.is_valid().to_numpy(zero_copy_only=False))
        if len(rows):
            vectors.append(trained.vectors(entity_type, partition).numpy()[rows])
            label_L += [labels[each] for each in position_N.drop_null().to_pylist()]
    dimension = trained.config.entity_dimension(entity_type)
    return np.concatenate([np.empty((0, dimension), np.float32), *vectors]), label_L


def _id_parts(trained: TrainedGraph, entity_type: str) -> Iterator[pa.Array]:
    for partition in range(len(trained.counts[entity_type])):
        parts = entity_index.iter_part(trained.config.entity_path, entity_type, partition)
        yield pa.concat_arrays([pa.array([], pa.string()), *parts])
