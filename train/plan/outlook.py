"""Estimates what training takes, without torch."""

from graphmill.config import Config, PbgConfig
from graphmill.display.readable import duration, number, size
from graphmill.run.job import Estimate, GraphSize, Rows
from graphmill.vocab import TRAIN_SPLIT, Side

# One core with the compiled step in float32 (docs/benchmarks/figures.md, D=100 and D=400): three products per
# side with all negatives at this rate, and this time for each element of an edge's vectors.
FLOPS = 85e9
ELEMENT_S = 7.3e-9


def estimate(config: Config, graph: GraphSize | None) -> Estimate:
    """Estimate buckets, memory and time; without the graph's size only buckets."""
    sides = [config.num_side_partitions(side) for side in Side]
    rows: Rows = {"train, buckets": " x ".join(map(str, sides))}
    if graph is None:
        return Estimate(rows)
    rows["train, memory for vectors"] = size(bucket_bytes(config, graph))
    num_edges = graph.num_edges.get(TRAIN_SPLIT, 0)
    seconds = num_edges * edge_s(config, graph)
    rows["train, time of one core"] = (
        f"about {duration(seconds * config.num_epochs)} for epochs: {number(config.num_epochs)}, "
        f"edges: {number(num_edges)}"
    )
    return Estimate(rows, graph)


def bucket_bytes(config: Config, graph: GraphSize) -> float:
    """Bytes of a model's rows and sums of a bucket: two partitions of each type, or its only one."""
    total = 0.0
    for name, count in graph.num_entities.items():
        dimension = PbgConfig.entity_dimension(config, name)
        states = dimension if config.train.optimizer == "adagrad" else 1
        partitions = config.entities[name].num_partitions
        total += min(2, partitions) * count / partitions * 4 * (dimension + states)
    return total


def edge_s(config: Config, graph: GraphSize) -> float:
    """Seconds that one core takes for an edge, in all models of an ensemble."""
    rows = (count / config.entities[name].num_partitions for name, count in graph.num_entities.items())
    num_negatives = config.num_compared(round(max(rows, default=0)))
    dimension = max(config.entity_dimension(name) for name in config.entities)
    return dimension * (12 * num_negatives / FLOPS + ELEMENT_S)
