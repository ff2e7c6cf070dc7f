"""A buffer of partitions on the device, against the whole graph on it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.gpu import synthetic
from bench.gpu.device import Machine
from bench.report import Report
from bench.setting import Setting
from graphmill.config import from_mapping
from train import job

PARTITIONS = 8
DEVICE_PARTITIONS = 4


def measure(setting: Setting, machine: Machine, report: Report) -> None:
    """Measure edges per second of the last of two epochs, waits included, with the real trainer."""
    small = machine.is_trial
    num_nodes, num_edges = (400, setting.num_rows or 0) if small else (8_000_000, 200_000_000)
    dimension, num_negatives = (8, 16) if small else (100, 1000)
    shared = synthetic.settings(dimension, num_negatives, small=small)
    floor = machine.training_floor(dimension, num_negatives, synthetic.CHUNK)
    rates = {}
    with setting.run_folder("gpu-buffer") as folder:
        graph = folder / "graph"
        synthetic.write_graph(graph, num_nodes, num_edges, PARTITIONS, machine.device)
        shared |= {
            "entities": {"node": {"num_partitions": PARTITIONS}},
            "entity_path": str(graph / "entities"),
            "edge_paths": [str(graph / "edges")],
            "num_epochs": 2,
            "num_gpus": int(machine.device.type == "cuda"),
        }
        swapped = {"resident": "never", "device_partitions": DEVICE_PARTITIONS}
        partly = f"{DEVICE_PARTITIONS} of {PARTITIONS} partitions"
        for what, own in (("whole graph", {"resident": "always"}), (partly, swapped)):
            rates[what], moved = _trained(shared, own, folder / what, small=small)
            report.add(
                what,
                dimension=dimension,
                negatives=num_negatives,
                M_edges_per_s=rates[what] / 1e6,
                floor_M_edges_per_s=floor / 1e6,
                share_of_floor=rates[what] / floor,
                partitions_moved=moved,
            )
        whole, buffered = rates.values()
        report.ratio("buffer to whole graph, edges/s", buffered / whole, ">= 0.85")


def _trained(
    shared: Mapping[str, Any], own: Mapping[str, Any], output: Path, *, small: bool
) -> tuple[float, int]:
    config = from_mapping(
        dict(shared)
        | {"output": str(output), "half_precision": not small}
        | {"train": synthetic.own_settings(small=small) | dict(own)}
    )
    last = job.train(config)["epochs"][-1]
    seconds = sum(bucket["seconds"] + bucket["wait_s"] for bucket in last["buckets"])
    return last["edges"] / seconds, last["partitions_read"]
