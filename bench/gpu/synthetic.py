"""Graphs generated on the device: the frequency of the k-th node or relation is about 1 / k."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphmill.formats import edge_buckets, entity_counts
from graphmill.vocab import Bucket
from train.gpu.reference import KernelEdges

NUM_RELATIONS = 1000
CHUNK = 1024
BATCH = 128 * CHUNK
_PART = 1 << 26  # numbers per step: their 64-bit intermediates take a gigabyte or two


def settings(dimension: int, num_negatives: int, *, small: bool) -> dict[str, Any]:
    """Settings of the model and its steps, in keys that our configuration and PBG's share."""
    return {
        "entities": {"node": {"num_partitions": 1}},
        "relations": [{"name": "all", "lhs": "node", "rhs": "node", "operator": "complex_diagonal"}],
        "dynamic_relations": True,
        "global_emb": False,
        "comparator": "dot",
        "loss_fn": "softmax",
        "dimension": dimension,
        "batch_size": 256 if small else BATCH,
        "num_batch_negs": 0,
        "num_uniform_negs": num_negatives,
        "lr": 0.1,
        "eval_fraction": 0.0,
    }


def own_settings(*, small: bool) -> dict[str, Any]:
    """Settings of the section `train`."""
    return {"engine": "fused", "chunk_edges": 64 if small else CHUNK}


def edges(num_nodes: int, num_edges: int, device: torch.device, generator: torch.Generator) -> KernelEdges:
    """Generate edges on the device, 12 bytes per edge."""
    columns = [zipf(limit, num_edges, device, generator) for limit in (num_nodes, NUM_RELATIONS, num_nodes)]
    return KernelEdges(columns[0], columns[1], columns[2], None)


def zipf(limit: int, count: int, device: torch.device, generator: torch.Generator) -> Tensor:
    """Draw numbers below `limit`, int32 [count]."""
    numbers = torch.empty(count, dtype=torch.int32, device=device)
    for start in range(0, count, _PART):
        part = numbers[start : start + _PART]
        uniform = torch.rand(len(part), device=device, generator=generator, dtype=torch.float64)
        part.copy_((torch.exp(uniform * np.log(limit)) - 1).long() * 7919 % limit)
    return numbers


def write_graph(folder: Path, num_nodes: int, num_edges: int, partitions: int, device: torch.device) -> None:
    """Write counts and bucket files."""
    generator = torch.Generator(device).manual_seed(2)
    each_nodes, each_edges = num_nodes // partitions, num_edges // partitions**2
    for partition in range(partitions):
        entity_counts.write_count(str(folder / "entities"), "node", partition, each_nodes)
    entity_counts.write_relation_count(str(folder / "entities"), NUM_RELATIONS)
    for lhs in range(partitions):
        for rhs in range(partitions):
            made = edges(each_nodes, each_edges, device, generator)
            columns = [column.cpu().numpy() for column in (made.lhs, made.rel, made.rhs)]
            bucket = edge_buckets.Edges(columns[0], columns[1], columns[2])
            edge_buckets.write_bucket(str(folder / "edges"), Bucket(lhs, rhs), bucket)
