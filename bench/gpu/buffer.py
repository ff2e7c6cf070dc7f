"""A buffer of partitions on the device, against the whole graph on it, and against PBG's GPU mode."""

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import measure as measuring
from bench import pbg
from bench.gpu import synthetic
from bench.gpu.device import Machine
from bench.report import Report
from bench.setting import Setting
from graphmill.config import from_mapping
from train import job

PARTITIONS = 8
DEVICE_PARTITIONS = 4
_PBG_LINE = re.compile(r"Processed (\d+) edges in ([0-9.]+) s ")


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
        for what, own in (
            ("whole graph", {"resident": "always"}),
            (
                f"{DEVICE_PARTITIONS} of {PARTITIONS} partitions",
                {"resident": "never", "device_partitions": DEVICE_PARTITIONS},
            ),
        ):
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
        if setting.peers:
            _beside_pbg(setting, report, shared, folder, whole)


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


def _beside_pbg(
    setting: Setting, report: Report, shared: Mapping[str, Any], folder: Path, ours: float
) -> None:
    """Measure PBG's GPU mode on the same files, or note why there is none."""
    try:
        python = setting.pbg_python or pbg.python()
    except Exception as error:
        report.notes.append(f"PBG: cannot be installed here: {error}")
        return
    found = subprocess.run(
        [str(python), "-c", "import torchbiggraph.train_gpu, torchbiggraph._C"],
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        last = found.stderr.strip().rpartition("\n")[2]
        report.notes.append(
            f"PBG: no GPU mode in {python} ({last}); release 1.0.0 on PyPI has none. "
            "--pbg-python PYTHON measures a development version that was built with PBG_INSTALL_CPP=1"
        )
        return
    settings = dict(shared) | {"checkpoint_path": str(folder / "pbg"), "batch_size": 100_000, "num_epochs": 1}
    measured = measuring.run(
        [python, "-m", "torchbiggraph.train", pbg.write_config(folder / "pbg.py", settings)]
    )
    passes = _PBG_LINE.findall(measured.stdout + measured.stderr)
    theirs = sum(int(edges) for edges, _ in passes) / sum(float(seconds) for _, seconds in passes)
    report.add("PBG's GPU mode", M_edges_per_s=theirs / 1e6)
    report.ratio("whole graph to PBG's GPU mode, edges/s", ours / theirs)
