"""Writes a trained checkpoint in GraphStorm's two layouts, partition by partition.

Source: docs/formats/graphstorm_embeddings.md, docs/formats/graphstorm_models.md.

A rank is a partition; a type with fewer partitions leaves the other ranks empty. The integer id of an entity
is the number of entities in the partitions before its own, plus its index: as in `etl.graphstorm_maps`.
Vectors include the type's global embedding, as in `remap`.
"""

import logging
import re

import numpy as np

from graphmill import storage
from graphmill.checkpoints.finite import check_finite
from graphmill.checkpoints.graphstorm import model as graphstorm_model
from graphmill.checkpoints.graphstorm import saved_embeddings
from graphmill.checkpoints.graphstorm.saved_embeddings import EmbInfo
from graphmill.checkpoints.pbg.checkpoint import PbgCheckpoint
from graphmill.config import Config
from graphmill.run.lock import NO_CLAIM, Claim

log = logging.getLogger("graphmill")

_RANK_FILE = re.compile(r"embed(_nids)?-[0-9]+\.pt")


def save(config: Config, embed_path: str | None, model_path: str | None, claim: Claim = NO_CLAIM) -> None:
    """Write the committed version in the layouts that have a path; emb_info.json last, models in one rename.

    Memory: one partition of embeddings.
    """
    checkpoint = PbgCheckpoint(config.checkpoint_path)
    if embed_path:
        _save_embeddings(config, checkpoint, embed_path, claim)
    if model_path:
        _save_model(checkpoint, model_path, claim)


def _save_embeddings(config: Config, checkpoint: PbgCheckpoint, embed_path: str, claim: Claim) -> None:
    claim.check()
    storage.delete(saved_embeddings.emb_info_uri(embed_path))
    world_size = max(config.num_partitions.values())
    for name, entity in config.entities.items():
        for earlier in storage.list_dir(storage.join(embed_path, name)):
            if _RANK_FILE.fullmatch(storage.name(earlier.uri)):  # of an earlier run, perhaps with more ranks
                storage.delete(earlier.uri)
        added_D = checkpoint.global_embedding(name)
        if added_D is not None:
            check_finite(added_D, f"{checkpoint.model_uri}: global embedding of {name!r}")
        first = 0
        for rank in range(world_size):
            if rank < entity.num_partitions:
                rows_ND = checkpoint.read_embeddings(name, rank)
            else:
                rows_ND = np.empty((0, config.entity_dimension(name)), np.float32)
            if added_D is not None:
                rows_ND += added_D
            nids = np.arange(first, first + len(rows_ND))
            claim.check()
            saved_embeddings.write_rank(embed_path, name, rank, nids, rows_ND)
            first += len(rows_ND)
    dimensions = {name: config.entity_dimension(name) for name in config.entities}
    claim.check()
    saved_embeddings.write_emb_info(embed_path, EmbInfo(tuple(config.entities), world_size, dimensions))


def _save_model(checkpoint: PbgCheckpoint, model_path: str, claim: Claim) -> None:
    iteration = checkpoint.iteration
    name = f"epoch-{iteration.epoch_idx if iteration else 0}"
    index, per_epoch = iteration.in_epoch if iteration else (0, 1)
    if index + 1 < per_epoch:
        name += f"-iter-{index}"
    with storage.atomic_directory(storage.join(model_path, name)) as folder:
        lost = graphstorm_model.write(checkpoint, folder)
        claim.check()
    log.info("train: saved %s/%s for GraphStorm", model_path, name)
    for text in lost:
        log.info("train: not kept: %s", text)
