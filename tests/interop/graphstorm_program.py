"""Runs in GraphStorm's environment: GraphStorm's own functions on files of ours, and its files for us.

python graphstorm_program.py ACTION JSON-OF-ARGUMENTS
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch as th
from graphstorm.gconstruct import remap_result
from graphstorm.gconstruct.id_map import IdMap
from graphstorm.model import edge_decoder, utils

DECODERS = {
    "distmult": edge_decoder.LinkPredictDistMultDecoder,
    "transe_l2": edge_decoder.LinkPredictTransEDecoder,
    "rotate": edge_decoder.LinkPredictRotatEDecoder,
    "dot_product": None,
}


class Table:
    """The part of DGL's DistEmbedding that GraphStorm uses, without servers."""

    def __init__(self, num_rows: int, dimension: int) -> None:
        self.num_embeddings = num_rows
        self._tensor = th.full((num_rows, dimension), th.nan)


class Embeddings(th.nn.Module):
    """GraphStorm's layer of learnable embeddings: a dummy and the tables."""

    def __init__(self, counts: dict[str, int], dimension: int) -> None:
        super().__init__()
        self._dummy = th.nn.Parameter(th.zeros(2))
        self.sparse_embeds = {name: Table(count, dimension) for name, count in counts.items()}


def graph_of(edges: dict[str, Any]) -> Any:
    import dgl

    pairs = {tuple(name.split(",")): (th.tensor(src), th.tensor(dst)) for name, (src, dst) in edges.items()}
    return dgl.heterograph(pairs)


def restore(models: list[str], edges: dict[str, Any], counts: dict[str, int], dimension: int) -> Any:
    """GraphStorm's scores of the edges by each saved model, before and after a step of Adam."""
    return [_restored(each, graph_of(edges), counts, dimension) for each in models]


def _restored(model: str, graph: Any, counts: dict[str, int], dimension: int) -> Any:
    config = config_of(model)
    assert config.hidden_size == dimension
    kind, layer = DECODERS[config.lp_decoder_type], Embeddings(counts, dimension)
    decoder = kind(graph.canonical_etypes, dimension, config.gamma) if kind else None
    utils.load_model(model, None, layer, decoder)
    utils.load_sparse_embeds(model, layer)
    before = scores(graph, layer, decoder)
    parameters = [*layer.parameters(), *(decoder.parameters() if decoder else ())]
    adam = th.optim.Adam(parameters, lr=0.01)
    utils.load_opt_state(model, [adam], [], [object()])
    for value in parameters:
        value.grad = th.ones_like(value)
    adam.step()
    after = f"{model}-after/epoch-1"
    Path(after).mkdir()
    utils.save_model(after, None, layer, decoder)
    utils.save_sparse_embeds(after, layer)
    utils.save_opt_state(after, [adam], [], [])
    if decoder:
        utils.save_relation_embeddings(f"{model}-after", decoder)
    return before, scores(graph, layer, decoder)


def config_of(model: str) -> Any:
    """GraphStorm's configuration from the model's YAML; it saves it with the model to come."""
    from graphstorm.config import GSConfig, get_argument_parser

    part_config = Path(f"{model}-graph/g.json")
    part_config.parent.mkdir(exist_ok=True)
    part_config.write_text(json.dumps({"graph_name": "g"}))
    yaml_path = f"{model}/GRAPHSTORM_RUNTIME_UPDATED_TRAINING_CONFIG.yaml"
    flags = ["--cf", yaml_path, "--part-config", str(part_config), "--save-model-path", f"{model}-after"]
    return GSConfig(get_argument_parser().parse_args(flags))


def scores(graph: Any, layer: Any, decoder: Any) -> dict[str, list[float]]:
    rows = {name: table._tensor for name, table in layer.sparse_embeds.items()}
    found = (decoder or edge_decoder.LinkPredictDotDecoder(rows["user"].shape[1]))(graph, rows)
    return {",".join(name): value.tolist() for name, value in found.items()}


def read_back(graph: str, vectors: str) -> dict[str, Any]:
    """Content of the graph that GraphStorm's gconstruct made: ids of its nodes by raw id, their features."""
    import dgl

    rows = dgl.distributed.load_partition(f"{graph}/g.json", 0)[1]
    ids = {}
    for name in (path.name for path in Path(graph, "raw_id_mappings").iterdir()):
        table = pq.read_table(f"{graph}/raw_id_mappings/{name}").to_pydict()
        ids[name] = dict(zip(table["orig"], table["new"], strict=True))
    return {"ids": ids, "features": {name: rows[f"{name}/{vectors}"].tolist() for name in ids}}


def moved(graph: str, model: str, sides: dict[str, Any], dimension: int) -> dict[str, Any]:
    """The result of `read_back`, and GraphStorm's scores by the model, of edges between raw ids."""
    found = read_back(graph, "embedding")
    ids = found["ids"]
    edges = {
        name: [[ids[kind][raw] for raw in column] for kind, column in both] for name, both in sides.items()
    }
    counts = {name: len(own) for name, own in ids.items()}
    return found | {"scores": _restored(model, graph_of(edges), counts, dimension)[0]}


def outputs(folder: str, remapped: dict[str, tuple[list[list[str]], list[str]]]) -> None:
    """Write what GraphStorm has for its remap, and remap parts of its copies with further flags."""
    write_outputs(folder)
    for target, (runs, more) in remapped.items():
        shutil.copytree(folder, target)
        for flag, name in runs:
            flags = ["--node-id-mapping", f"{target}/raw_id_mappings", flag, f"{target}/{name}", *more]
            remap_result.main(*remap_result.generate_parser().parse_known_args(flags))


def write_outputs(folder: str) -> None:
    """Maps, embeddings and predictions in every form that GraphStorm's writers give, for remap."""
    rng = np.random.default_rng(0)
    generator = th.Generator().manual_seed(0)
    raw = {"user": np.array([f"u{number}" for number in rng.permutation(30)]), "item": rng.permutation(20)}
    for name, ids in raw.items():
        IdMap(ids).save(f"{folder}/raw_id_mappings/{name}/part-00000.parquet")
    forms = {
        "plain": th.randn(30, 4, generator=generator),
        "half": th.randn(30, 4, generator=generator).half(),
        "double": th.randn(30, 4, generator=generator).double(),
        "integer": th.arange(60).reshape(30, 2),
        "one": th.randn(30, generator=generator),
        "one_half": th.randn(30, generator=generator).half(),
        "expanded": th.randn(4, generator=generator).expand(30, 4),
        "one_expanded": th.tensor(3.0).expand(30),
    }
    for form, rows in forms.items():
        nids = th.from_numpy(rng.permutation(30))
        utils.save_shuffled_node_embeddings(
            {"user": (rows, nids), "item": (rows[:20], th.arange(20))}, f"{folder}/emb-{form}"
        )
    utils.save_node_prediction_results(
        {"user": (th.rand(30, 3, generator=generator), th.arange(30)), "item": (th.arange(5), th.arange(5))},
        f"{folder}/pred-node",
    )
    pairs = th.arange(10), th.arange(10)
    utils.save_edge_prediction_results(
        {("user", "likes_a_lot", "item"): (th.rand(10, generator=generator), *pairs)}, f"{folder}/pred-edge"
    )
    Path(folder, "emb-hdf5").mkdir()
    tables = {name: forms["plain"][: len(ids)] for name, ids in raw.items()}
    utils.save_hdf5_embeddings(f"{folder}/emb-hdf5", tables, 0, 1)


if __name__ == "__main__":
    found = globals()[sys.argv[1]](**json.loads(sys.argv[2]))
    sys.stdout.write(f"result: {json.dumps(found)}\n")
