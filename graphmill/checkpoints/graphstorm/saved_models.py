"""GraphStorm's trained models, saved at `save_model_path`.

    {save_model_path}/
        GRAPHSTORM_RUNTIME_UPDATED_TRAINING_CONFIG.yaml     the decoder, the encoder, the place of the graph
        epoch-{E}[-iter-{I}]/
            model.bin           {"decoder": state_dict, "node_embed": state_dict, "gnn": state_dict}
            optimizers.bin      {"dense": state_dict of Adam}, or {}: GraphStorm saves no state of embeddings
            {type}/sparse_emb_{rank:05d}.pt     [ceil(N / W), D]: rows from rank * ceil(N / W) on
    {save_embed_path}/relation2id_map.json      the row of each edge type in the decoder's weight
    {graph}/node_mapping.pt     {type: int64 [N]}, the node id of each row, of a graph with several partitions

These three are read beside model.bin or one folder up. In a model that we write, they lie beside model.bin.
Source: docs/formats/graphstorm_models.md.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from graphmill import storage
from graphmill.checkpoints.graphstorm.saved_ranks import EdgeType, RankRows
from graphmill.config import parsed_yaml
from graphmill.errors import FormatError
from graphmill.formats.entity_counts import count_partitions, numbers_by_type
from graphmill.formats.torch_files.tensor import open_tensor

if TYPE_CHECKING:
    from torch import Tensor

MODEL = "model.bin"
OPTIMIZERS = "optimizers.bin"
CONFIG = "GRAPHSTORM_RUNTIME_UPDATED_TRAINING_CONFIG.yaml"
RELATIONS = "relation2id_map.json"
NODE_MAPPING = "node_mapping.pt"
WEIGHT = "_w_relation.weight"
"""The parameters of the relations in GraphStorm's decoders DistMult, TransE and RotatE."""

_RANK_FILE = re.compile(r".*/(?P<type>[^/]+)/sparse_emb_(?P<partition>[0-9]{5,9})\.pt$")
States = Mapping[str, Mapping[str, "Tensor"]]


def list_tables(model_path: str) -> dict[str, list[RankRows]]:
    """The files of each type's embeddings in the order of their ranks, with their shapes (n, D)."""
    folders = [storage.name(entry.uri) for entry in storage.list_dir(model_path) if entry.is_dir]
    files = [file.uri for name in folders for file in storage.list_dir(storage.join(model_path, name))]
    uri_of = partial(sparse_emb_uri, model_path)
    num_ranks = count_partitions(numbers_by_type(files, _RANK_FILE), uri_of)
    return {
        name: [_measured(rank, uri_of(name, rank)) for rank in range(num)] for name, num in num_ranks.items()
    }


def _measured(rank: int, uri: str) -> RankRows:
    with open_tensor(uri) as rows:
        dtype, shape = rows.dtype, rows.shape
    if len(shape) != 2 or "float" not in dtype:
        raise FormatError(f"{uri}: expected floats [n, D], found {dtype} {shape}")
    return RankRows(rank, uri, (), dtype, shape)


def sparse_emb_uri(model_path: str, entity_type: str, rank: int) -> str:
    """The file of one rank's embeddings."""
    return storage.join(model_path, entity_type, f"sparse_emb_{rank:05d}.pt")


def read_states(model_path: str) -> States:
    """The parameters in model.bin, by part of the model and name."""
    from graphmill.formats.torch_files.read import load

    uri = storage.join(model_path, MODEL)
    content: Any = load(uri)
    if not isinstance(content, Mapping) or not all(map(_are_tensors, content.values())):
        raise FormatError(f"{uri}: expected parameters by part and name, found other content")
    return dict(content)


def read_settings(model_path: str) -> dict[str, Any] | None:
    """The settings of all sections of the YAML, beside model.bin or one folder up; None without a YAML."""
    return next((read_yaml(uri)[1] for uri in _beside(model_path, CONFIG)), None)


def read_yaml(uri: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The sections of GraphStorm's YAML, and the settings of all of them."""
    content = parsed_yaml(storage.read_text(uri), uri)
    sections = content.get("gsf") if isinstance(content, dict) else None
    if not isinstance(sections, dict):
        raise FormatError(f"{uri}: expected GraphStorm's YAML with the key 'gsf'")
    settings: dict[str, Any] = {}
    for section in sections.values():
        settings |= section if isinstance(section, dict) else {}
    return sections, settings


def read_edge_types(model_path: str) -> list[EdgeType] | None:
    """The edge types in the order of the decoder's rows; None without a file of them."""
    for uri in _beside(model_path, RELATIONS):
        numbers = storage.read_json(uri)
        texts = {number: text for text, number in numbers.items() if type(number) is int}
        if sorted(texts) != list(range(len(numbers))):
            raise FormatError(f"{uri}: expected edge types with the numbers from 0 on, found {numbers!r:.80}")
        return [_edge_type(texts[number], uri) for number in sorted(texts)]
    return None


def read_node_mapping(model_path: str) -> "Mapping[str, Tensor]":
    """The node id of each row, int64 [N], by type; empty without a file of them."""
    from graphmill.formats.torch_files.read import load

    for uri in _beside(model_path, NODE_MAPPING):
        content: Any = load(uri)
        if not _are_tensors(content, "torch.int64"):
            raise FormatError(f"{uri}: expected int64 [N] by type, found other content")
        return dict(content)
    return {}


def _are_tensors(content: Any, dtype: str = "") -> bool:
    """Tell whether these are tensors by name, maybe of one dtype."""
    import torch

    tensors = content.values() if isinstance(content, Mapping) else [None]
    return all(isinstance(each, torch.Tensor) and str(each.dtype).startswith(dtype) for each in tensors)


def write(
    model_path: str, states: States, settings: Mapping[str, Any], edge_types: Sequence[EdgeType]
) -> None:
    """Write all files but the embeddings: `settings` by section; the rows of the weight are `edge_types`."""
    import yaml

    from graphmill.formats.torch_files.write import save

    save(storage.join(model_path, MODEL), states)
    save(storage.join(model_path, OPTIMIZERS), {})
    storage.write_text(storage.join(model_path, CONFIG), yaml.safe_dump({"gsf": settings}))
    if edge_types:
        numbers = {str(edge_type): number for number, edge_type in enumerate(edge_types)}
        storage.write_json(storage.join(model_path, RELATIONS), numbers, ensure_ascii=False, indent=4)


def _beside(model_path: str, name: str) -> Iterator[str]:
    for folder in (model_path, storage.parent(model_path)):
        if storage.exists(uri := storage.join(folder, name)):
            yield uri


def _edge_type(text: str, uri: str) -> EdgeType:
    """Three names from the text of a tuple; a relation's name may be anything."""
    try:
        lhs, name, rhs = ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        lhs = name = rhs = None
    if not (isinstance(lhs, str) and isinstance(name, str) and isinstance(rhs, str)):
        raise FormatError(f"{uri}: expected the text of (source type, relation, target type), found {text!r}")
    return lhs, name, rhs
