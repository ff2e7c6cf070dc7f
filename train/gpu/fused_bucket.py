"""Training on a bucket by the engine: its edges as the kernels want them, its figures as the trainer does."""

import logging
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from graphmill.config import Config
from graphmill.errors import ConfigError
from train.config import TrainConfig
from train.edges.batches import EdgeTensors
from train.gpu import engine
from train.gpu.fused_step import FusedStep, Group, Sides, obstacle
from train.gpu.reference import Edges
from train.model.model import Model
from train.model.optimizer import Adagrad

Tell = Callable[[int, Tensor], None]

log = logging.getLogger("graphmill")


class FusedBuckets:
    """Trains on one bucket after another."""

    def __init__(self, config: Config, model: Model, adagrad: Adagrad, device: torch.device) -> None:
        self.config = config
        self.step = FusedStep(config, model, adagrad, device)

    def __call__(
        self, edges: EdgeTensors, sides: Mapping[int, Sides], seed: int, lr_scale: float, tell: Tell
    ) -> Tensor:
        """One pass over `edges`, in an order that `seed` decides; the sums of StepFigures, float64 [4].

        `sides` are the tables of each relation, in this bucket.
        """
        self.step.lr_scale = lr_scale
        columns, groups = self._grouped(edges)
        return engine.run(self.config, self.step, columns, groups, sides, seed, tell)

    def _grouped(self, edges: EdgeTensors) -> tuple[Edges, list[Group]]:
        """The edges as 32-bit columns; those of one static relation side by side."""
        if self.config.dynamic_relations:
            groups = [Group(0, 0, len(edges))] if len(edges) else []
        else:
            if bool((edges.rel[1:] < edges.rel[:-1]).any()):
                edges = edges[torch.sort(edges.rel, stable=True).indices]
            counts = torch.bincount(edges.rel, minlength=len(self.config.relations)).tolist()
            firsts = [sum(counts[:number]) for number in range(len(counts))]
            groups = [Group(number, firsts[number], count) for number, count in enumerate(counts) if count]
        weight = None if bool((edges.weight == 1).all()) else edges.weight
        lhs, rel, rhs = (column.to(torch.int32) for column in (edges.lhs, edges.rel, edges.rhs))
        return Edges(lhs, rel, rhs, weight), groups


def fused_buckets(
    config: Config, model: Model, adagrad: Adagrad, device: torch.device
) -> FusedBuckets | None:
    """The engine, where the configuration asks for it or, on a GPU, allows it.

    Raises:
        ConfigError: train.engine is `fused`, and the configuration has what the kernels do not know, or the
            device is too small for them.
    """
    choice = config.section(TrainConfig).engine
    reason = obstacle(config) or _too_small(config, device)
    if choice == "fused" and reason:
        raise ConfigError(
            f"train.engine: fused cannot train {reason}; set train.engine to auto or plain, or do without it"
        )
    if choice == "plain" or (choice == "auto" and device.type != "cuda"):
        return None
    if reason:
        log.info("training: steps of plain torch on the GPU: the kernels do not know %s", reason)
        return None
    return FusedBuckets(config, model, adagrad, device)


def _too_small(config: Config, device: torch.device) -> str | None:
    """What the kernels would ask of a GPU that it has not, or None: their tiles are made for Hopper."""
    if device.type != "cuda":
        return None
    from train.gpu import kernels

    gpu = torch.cuda.get_device_properties(device)
    kernels.set_exact(config.section(TrainConfig).exact_products)
    dimension = max(config.entity_dimension(name) for name in config.entities)
    needed = kernels.shared_bytes(dimension, torch.bfloat16 if config.half_precision else torch.float32)
    there: int = gpu.shared_memory_per_block_optin  # type: ignore[attr-defined]  # not in the stub
    if gpu.major >= 8 and needed <= there:
        return None
    return (
        f"dimension {dimension} on this {gpu.name}, with {there >> 10} KiB of "
        f"shared memory a block (at most {needed >> 10} are needed, and compute capability 8.0)"
    )
