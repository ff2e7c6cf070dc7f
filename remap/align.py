"""Vectors of a new training, turned into the space of an earlier run.

Two trainings from nothing agree on angles between vectors, not on the vectors. The orthogonal matrix that
brings the unit vectors of the ids of both runs nearest to each other keeps all cosines and dot products.

Source: P. Schönemann, A generalized solution of the orthogonal Procrustes problem, Psychometrika 31 (1966).

Shapes: N ids that both runs have, D dimension.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from distributed import Client

from graphmill.ask.earlier import check_length, pairs, parts_of, parts_with
from graphmill.ask.entities import MeasuredPartition, iter_ids, iter_vectors
from graphmill.ask.run import TrainedRun
from graphmill.checkpoints import Floats
from graphmill.cluster import run_tasks
from graphmill.errors import BadInputError

ENOUGH_ROWS = 1 << 20  # of a type, of its first partitions: ids are in partitions at random

Doubles = npt.NDArray[np.float64]

log = logging.getLogger("graphmill")


def fit_alignment(
    client: Client, trained: TrainedRun, parts: Sequence[MeasuredPartition], to: str, batch_rows: int
) -> tuple[dict[int, Floats], dict[str, Any]]:
    """Find a matrix for each length of vectors, as types of one length are in one space; and figures.

    `to` is the folder of the earlier run's embeddings. At least ENOUGH_ROWS ids of a type count, or all.
    """
    chosen = list(_chosen(parts, to))
    arguments = [(trained, part, batch_rows, to, others) for part, others in chosen]
    products = run_tasks(client, product_of_part, arguments, description="aligning", unit="partitions")
    matrices: dict[int, Floats] = {}
    figures: dict[str, Any] = {"to": to}
    for dimension in dict.fromkeys(part.dimension for part in parts):
        product_DD, num_ids = np.zeros((dimension, dimension)), 0
        for (part, _), (own_DD, num) in zip(chosen, products, strict=True):
            if part.dimension == dimension:
                product_DD += own_DD
                num_ids += num
        if num_ids < dimension:
            raise BadInputError(
                f"remap.align_to: expected {dimension} ids, as many as the length of the vectors, that this "
                f"run shares with {to}; found {num_ids}. Name the run that these vectors replace, or remove "
                "the key"
            )
        matrix_DD, singular_D = rotation(product_DD)
        matrices[dimension] = matrix_DD.astype(np.float32)
        figures[f"length_{dimension}"] = {
            "num_ids": num_ids,
            "mean_cosine_before": round(float(np.trace(product_DD)) / num_ids, 6),
            "mean_cosine": round(float(singular_D.sum()) / num_ids, 6),
        }
        log.info("remap: mean cosine with %s: %s", to, figures[f"length_{dimension}"])
    return matrices, figures


def _chosen(parts: Sequence[MeasuredPartition], to: str) -> Iterator[tuple[MeasuredPartition, Sequence[int]]]:
    """The first partitions of each type that both runs have, and the parts that may have their ids."""
    for name in dict.fromkeys(part.entity_type for part in parts):
        own = [part for part in parts if part.entity_type == name]
        earlier, num_rows = parts_of(to, name), 0
        for part in own if earlier else []:
            if num_rows < ENOUGH_ROWS:
                check_length(to, name, part.dimension, "remap.align_to")
                yield part, parts_with(part.partition, len(own), earlier)
                num_rows += part.num_rows


def rotation(product_DD: Doubles) -> tuple[Doubles, Doubles]:
    """The orthogonal matrix R [D, D] with the largest trace of R' product, and the singular values [D].

    Of product = now' then, R brings the rows now R nearest to then.
    """
    left_DD, singular_D, right_DD = np.linalg.svd(product_DD)
    return left_DD @ right_DD, singular_D


def product_of_part(
    trained: TrainedRun,
    part: MeasuredPartition,
    batch_rows: int,
    embedding_path: str,
    parts_before: Sequence[int],
) -> tuple[Doubles, int]:
    """Sum now' then over the unit vectors of the ids that both runs have: [D, D], and their number."""
    product_DD, num_ids = np.zeros((part.dimension, part.dimension)), 0

    def batches() -> Any:
        return zip(iter_ids(trained, part, batch_rows), iter_vectors(trained, part, batch_rows), strict=False)

    for _, now_ND, then_ND in pairs(batches, embedding_path, part.entity_type, parts_before):
        product_DD += _unit(now_ND).T @ _unit(then_ND)
        num_ids += len(now_ND)
    return product_DD, num_ids


def _unit(vectors_ND: Floats) -> Doubles:
    vectors = vectors_ND.astype(np.float64)
    lengths_N1 = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths_N1 > 0, lengths_N1, 1)
