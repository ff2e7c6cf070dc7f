"""Filtered ranking of 10 k edges against 10 M entities, on both sides, with rows in host memory."""

import numpy as np
import torch

from bench.gpu import synthetic
from bench.gpu.device import Machine
from bench.report import Report
from bench.setting import Setting
from graphmill.cluster import num_cores
from graphmill.config import from_mapping
from train.evaluation import ranking
from train.evaluation.metrics import Ranks, concatenated
from train.evaluation.queries import Slots, Triples, block_sizes
from train.evaluation.ranker import Ranker
from train.model.model import Model
from train.plan.decide import can_rank


def measure(setting: Setting, machine: Machine, report: Report) -> None:
    """Measure seconds, and the share of the float32 product rate of the device."""
    small = machine.is_trial
    num_entities, num_edges, dimension = (2000, 50, 8) if small else (10_000_000, 10_000, 100)
    config = from_mapping(synthetic.settings(dimension, 0, small=small) | {"output": "unused"})
    model = Model(config, synthetic.NUM_RELATIONS, relation_init="random", seed=1).to(machine.device)
    table_ND = torch.randn(num_entities, dimension, device=machine.device).cpu()
    rng = np.random.default_rng(1)
    edges = Triples(
        rng.integers(num_entities, size=num_edges),
        rng.integers(synthetic.NUM_RELATIONS, size=num_edges),
        rng.integers(num_entities, size=num_edges),
    )
    counts = {"node": [num_entities]}
    height, width = block_sizes(256 << 20, counts["node"])
    slots = Slots(config, counts, synthetic.NUM_RELATIONS, width)

    def rank(_: int) -> Ranks:
        fused = can_rank(config, machine.device)
        ranker = Ranker(model, machine.device, num_threads=num_cores(), fused=fused)
        by_side = ranking.rank(ranker, slots, {("node", 0): table_ND}, edges, edges, height)
        return concatenated(list(by_side.values()))

    seconds = machine.median_s(rank, repeats=2)
    operations = 2 * 2 * num_edges * num_entities * dimension
    report.add(
        f"{num_edges:,} edges against {num_entities:,} entities",
        dimension=dimension,
        seconds=seconds,
        TFLOP_per_s=operations / seconds / 1e12,
        share_of_product=operations / seconds / machine.float_rate,
        mean_rank=rank(0).metrics()["mean_rank"],
        peak_bytes=machine.peak_bytes(),
    )
    report.ratio("seconds", seconds, "<= 10")
