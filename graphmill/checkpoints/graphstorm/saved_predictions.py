"""GraphStorm's predictions, saved at `save_prediction_path`.

    {prediction_path}/
        result_info.json                    format, world_size, ntypes or etypes ([[src, rel, dst], ...])
        {type}/predict-{rank:05d}.pt        [n, C] or [n], floats or integers
        {type}/predict_nids-{rank:05d}.pt   [n] int64
        {src}_{rel}_{dst}/predict-{rank:05d}.pt  src_nids-{rank:05d}.pt  dst_nids-{rank:05d}.pt

A multi-task run has one such folder per task. Source: docs/formats/graphstorm_predictions.md.
"""

from dataclasses import dataclass
from typing import Any

from graphmill import storage
from graphmill.checkpoints.graphstorm import saved_ranks
from graphmill.checkpoints.graphstorm.saved_ranks import checked_name
from graphmill.errors import FormatError

RESULT_INFO = "result_info.json"
PREDICT = "predict"
NODE_STEMS = ("predict_nids",)
EDGE_STEMS = ("src_nids", "dst_nids")

EdgeType = tuple[str, str, str]


@dataclass(frozen=True)
class ResultInfo:
    """Content of result_info.json: node types and edge types with predictions, and the number of ranks."""

    entity_types: tuple[str, ...] = ()
    edge_types: tuple[EdgeType, ...] = ()
    world_size: int | None = None


def result_info_uri(prediction_path: str) -> str:
    """Place of result_info.json."""
    return storage.join(prediction_path, RESULT_INFO)


def edge_folder(prediction_path: str, edge_type: EdgeType) -> str:
    """The folder of an edge type; types may contain underscores, so no folder's name is split."""
    return storage.join(prediction_path, "_".join(edge_type))


def read_result_info(prediction_path: str) -> ResultInfo:
    """Read result_info.json; GraphStorm's page calls `ntypes` `emb_name`."""
    uri = result_info_uri(prediction_path)
    content, world_size = saved_ranks.read_info(uri)
    types = content.get("ntypes", content.get("emb_name", []))
    listed = [types] if isinstance(types, str) else types
    edges = content.get("etypes", [])
    if not isinstance(listed, list) or not isinstance(edges, list) or not (listed or edges):
        raise FormatError(f"{uri}: expected lists ntypes or etypes, found {types!r} and {edges!r}")
    return ResultInfo(
        tuple(checked_name(name, f"{uri}: ntypes") for name in listed),
        tuple(checked_edge_type(edge, f"{uri}: etypes") for edge in edges),
        world_size,
    )


def checked_edge_type(edge_type: Any, where: str) -> EdgeType:
    """Check that `edge_type` has three names."""
    if not isinstance(edge_type, list | tuple) or len(edge_type) != 3:
        raise FormatError(f"{where}: expected [source type, relation, target type], found {edge_type!r}")
    src, rel, dst = (checked_name(name, where) for name in edge_type)
    return src, rel, dst
