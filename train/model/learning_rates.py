"""Schedules of the learning rates over a run: the factor of lr and relation_lr.

constant   1: Adagrad slows down by itself
linear     from 1 to lr_final in a straight line
cosine     from 1 to lr_final along half a wave, slow at both ends
"""

import math

from graphmill.checkpoints.pbg import Iteration
from graphmill.config.sections.train import TrainConfig


def progress(iteration: Iteration, share: float) -> float:
    """Share of the run that is done (0 to 1) when `share` of each bucket of the iteration is done."""
    per_epoch = iteration.num_edge_paths * iteration.num_edge_chunks
    index = iteration.edge_path_idx * iteration.num_edge_chunks + iteration.edge_chunk_idx
    return (iteration.epoch_idx + (index + share) / per_epoch) / iteration.num_epochs


def lr_scale(settings: TrainConfig, done: float) -> float:
    """Factor of both learning rates when the share `done` (0 to 1) of the run is done."""
    match settings.lr_schedule:
        case "linear":
            fallen = done
        case "cosine":
            fallen = (1 - math.cos(math.pi * done)) / 2
        case _:
            return 1.0
    return 1 - (1 - settings.lr_final) * fallen
