"""A graph of the size of Twitter's: what ten epochs with checkpoints take, from two parts.

    twitter         the steps of one epoch: 1.47 G edges, generated on the device
    twitter-files   the real trainer, with half of the rows and few edges: reading edges, and checkpoints

One run of all that needs 70 GB of files. `ten_epochs` adds up what the parts have measured. It leaves out the
start of the command and the initial rows.
"""

from collections.abc import Mapping
from typing import Any

from bench.gpu import synthetic
from bench.gpu.device import Machine
from bench.gpu.throughput import Graph
from bench.report import Report
from bench.setting import Setting
from graphmill.config import from_mapping
from train.edges.bucket_order import order_of
from train.run.trainer import Trainer

EPOCHS = 10
# Ten epochs in three minutes. Rows and sums 16.8 GB, edges 17.6 GB; steps about 2 GB.
GRAPH = Graph(41_600_000, 1_470_000_000, 1_470_000_000, 100, 1000, goal=81.7e6)
SHARE = 2  # one of so many rows in the files: two versions of all take 34 GB
PARTITIONS = 4
FILE_EDGES = 80_000_000
READ, WRITTEN = "edges read", "a version written"


def measure_files(setting: Setting, machine: Machine, report: Report) -> None:
    """Measure the reading of edges, and the seconds of an epoch beside its steps."""
    graph = GRAPH.sized(setting)
    num_nodes = graph.num_nodes // SHARE
    num_edges = graph.num_edges if machine.is_trial else FILE_EDGES
    with setting.run_folder("gpu-twitter") as folder:
        synthetic.write_graph(folder / "graph", num_nodes, num_edges, PARTITIONS, machine.device)
        shared = synthetic.settings(graph.dimension, graph.num_negatives, small=machine.is_trial)
        own = synthetic.own_settings(small=machine.is_trial) | {"resident": "always"}
        changes = {
            "entities": {"node": {"num_partitions": PARTITIONS}},
            "entity_path": str(folder / "graph" / "entities"),
            "edge_paths": [str(folder / "graph" / "edges")],
            "output": str(folder / "run"),
            "num_epochs": 2,
            "num_gpus": int(machine.device.type == "cuda"),
            "half_precision": not machine.is_trial,
            "train": own,
        }
        trainer = Trainer(from_mapping(shared | changes))
        first = trainer.context.schedule.iteration(0)
        bucket = order_of(trainer.bucket.config, first, trainer.order_slots)[0]
        read_s = machine.once_s(lambda: trainer.bucket.reader.read(bucket, first))
        last = trainer.run()["epochs"][-1]
    steps_s = sum(bucket["seconds"] for bucket in last["buckets"])
    report.add(READ, edges=num_edges, seconds=read_s, M_edges_per_s=num_edges / read_s / 1e6)
    report.add(
        WRITTEN,
        rows=num_nodes,
        seconds=last["seconds"] - steps_s,
        GB=num_nodes * 4 * (graph.dimension + 1) / 1e9,
    )


def ten_epochs(reports: Mapping[str, Mapping[str, Any]], summary: Report) -> None:
    """Add the seconds of ten epochs, if both parts are there.

    Edges are read once. A version is written while the next epoch trains, so each epoch takes the longer of
    both; the last version is written alone.
    """
    steps, files = (
        {row["what"]: row for row in reports.get(f"gpu {name}", {}).get("rows", ())} for name in PARTS
    )
    if not {READ, WRITTEN} <= files.keys():
        return
    for what, row in steps.items():
        if "share_of_floor" not in row:
            continue
        read_s = row["edges"] / files[READ]["edges"] * files[READ]["seconds"]
        write_s = SHARE * files[WRITTEN]["seconds"]
        apart_s = read_s + EPOCHS * (row["seconds"] + write_s)
        beside_s = read_s + EPOCHS * max(row["seconds"], write_s) + write_s
        summary.ratio(
            f"twitter, ten epochs, versions written beside steps, {what}: seconds", beside_s, "<= 180"
        )
        summary.ratio(f"twitter, ten epochs, one after the other, {what}: seconds", apart_s)


PARTS = ("twitter", "twitter-files")
