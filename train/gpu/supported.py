"""Configurations and devices that the fused kernels can train."""

import torch

from graphmill.config import Config
from graphmill.model.operators import operator_of
from train.gpu.reference import LOSSES, OPERATORS
from train.model import regularizers

MAX_DIMENSION = 1024  # of which a tile of rows and its sums fit in the registers of a block


def obstacle(config: Config) -> str | None:
    """Name the part of this configuration that the kernels cannot train; None for no such part."""
    for relation in config.relations:
        if relation.operator not in OPERATORS:
            return f"operator {relation.operator!r} of relation {relation.name!r}"
        if relation.all_negs:
            return f"all_negs of relation {relation.name!r}"
    settings = config.train
    two_sided = config.dynamic_relations or settings.reciprocal_relations
    refused = {
        f"comparator {config.comparator!r}": config.comparator != "dot",
        "translations of static relations": not two_sided
        and not all(operator_of(relation.operator).is_linear for relation in config.relations),
        f"loss_fn {config.loss_fn!r}": config.loss_fn not in LOSSES,
        f"regularizer {config.regularizer!r}": regularizers.is_plug_in(config),
        f"train.negative_sampler {settings.negative_sampler!r}": settings.negative_sampler is not None,
        "train.relation_prediction": settings.relation_prediction > 0,
        "bias": config.bias,
        "train.negative_power": settings.negative_power > 0,
        "global_emb": config.global_emb,
        "max_norm": config.max_norm is not None,
        f"a dimension above {MAX_DIMENSION}": any(
            config.entity_dimension(name) > MAX_DIMENSION for name in config.entities
        ),
        "disable_lhs_negs or disable_rhs_negs": config.disable_lhs_negs or config.disable_rhs_negs,
        "featurized entities": any(entity.featurized for entity in config.entities.values()),
    }
    return next((setting for setting, is_set in refused.items() if is_set), None)


def obstacle_of_device(config: Config, device: torch.device) -> str | None:
    """Name what the GPU lacks for the kernels, whose tiles are made for Hopper; None if nothing."""
    if device.type != "cuda":
        return None
    from train.gpu import kernels  # Triton comes with torch's builds for CUDA

    gpu = torch.cuda.get_device_properties(device)
    dimension = max(config.entity_dimension(name) for name in config.entities)
    operands = torch.bfloat16 if config.half_precision else torch.float32
    exact = config.train.exact_products
    needed = kernels.shared_bytes(dimension, operands, exact=exact)
    available: int = gpu.shared_memory_per_block_optin  # type: ignore[attr-defined]  # not in the stub
    if gpu.major >= 8 and needed <= available:
        return None
    return (
        f"dimension {dimension} on this {gpu.name}, with {available >> 10} KiB of "
        f"shared memory per block (at most {needed >> 10} are needed, and compute capability 8.0)"
    )
