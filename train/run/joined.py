"""Joins the checkpoints of an ensemble's members into one, whose scores are the sums of theirs.

    vectors                     one member after the other; beside complex operators first all real parts,
                                then all imaginary parts
    diagonals, translations     like vectors;  real and imaginary parts, angles: one member after the other
    linear transformations      blocks on the diagonal, with rows and columns like vectors

Adagrad's sums are joined like what they belong to; the sum of a row is the mean over the members, as row-wise
Adagrad takes means over elements.

Shapes: N rows, D dimension of a member, J joined dimension, R relations, `...` leading dimensions.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from graphmill.checkpoints import pbg
from graphmill.checkpoints.pbg.checkpoint import PbgCheckpoint
from graphmill.config import Config, PbgConfig
from graphmill.config.partitions import PartitionKey
from graphmill.model.operators import operator_of
from graphmill.model.parameters import parse_global_key, parse_operator_key
from graphmill.run.lock import NO_CLAIM, Claim
from graphmill.storage import Checksums
from train.edges.schedule import plan
from train.model.optimizer import Adagrad, sums_of_table_state, table_state
from train.run.ensemble import members_of, record
from train.tables.run_context import RunContext

_PIECE_BYTES = 16 << 20


def join_partition(config: Config, key: PartitionKey, version: int, claim: Claim = NO_CLAIM) -> Checksums:
    """Write one partition of the joined `version`; return its checksum. Memory: all members' sums."""
    members = [PbgCheckpoint(member.checkpoint_path) for member in members_of(config)]
    with members[0].open_rows(*key) as rows:
        num_rows, dimension = rows.shape
    order_J = order(config, dimension).numpy()
    piece = max(1, _PIECE_BYTES // (4 * dimension))
    pieces = zip(*(member.iter_embeddings(*key, piece) for member in members), strict=True)
    sums = _joined_sums(config, key, members, (num_rows, dimension))
    checksums: Checksums = {}
    claim.check()
    pbg.write_embeddings(
        config.checkpoint_path,
        *key,
        version,
        (np.concatenate(vectors, 1)[:, order_J] for vectors in pieces),
        table_state(sums, config.lr),
        config.pbg(),
        members[0].iteration,
        checksums,
        shape=(num_rows, len(order_J)),
    )
    return checksums


def join_model(config: Config, version: int, checksums: Checksums, claim: Claim = NO_CLAIM) -> None:
    """Write what belongs to no entity, and commit `version`, whose partitions have these `checksums`."""
    schedule = plan(config)
    members = members_of(config)
    models, optimizers = zip(*(RunContext(member, schedule).load_model() for member in members), strict=True)
    parameters, sums = (
        {key: joined(config, key, [part[key] for part in parts]) for key in parts[0]}
        for parts in ([model.parameters for model in models], [optimizer.sums for optimizer in optimizers])
    )
    adagrad = Adagrad(parameters, optimizers[0].lr)
    adagrad.sums = sums
    adagrad.steps = {key: max(optimizer.steps[key] for optimizer in optimizers) for key in parameters}
    path, content = config.checkpoint_path, config.pbg()
    claim.check()
    of_config = pbg.write_config(path, content)
    iteration = PbgCheckpoint(members[0].checkpoint_path).iteration
    pbg.write_model(path, version, parameters, adagrad.state_dict(), content, iteration, checksums)
    record(config, version)
    claim.check()
    pbg.commit(path, version, preserve_epoch=None, checksums=checksums | of_config)


def order(config: Config, dimension: int, size: int | None = None) -> Tensor:
    """Place of each joined coordinate [J] among the members' vectors, one member after the other.

    Types that complex operators cannot have keep the members' vectors whole. `size` is that of parameters
    which have fewer numbers than a vector, such as angles.
    """
    size = size or dimension
    most = math.lcm(*(operator_of(relation.operator).parts for relation in config.relations))
    num_parts = math.gcd(most, dimension) * size // dimension
    places = torch.arange(config.train.ensemble * size)
    return places.view(config.train.ensemble, num_parts, -1).transpose(0, 1).flatten()


def joined(config: Config, key: str, values: Sequence[Tensor]) -> Tensor:
    """Join the members' values of a parameter, or the sums of them."""
    operator = parse_operator_key(key)
    entity_type = config.relations[operator.relation].rhs if operator else str(parse_global_key(key))
    dimension = PbgConfig.entity_dimension(config, entity_type)
    order_J = order(config, dimension, values[0].shape[-1])
    if operator and values[0].dim() - config.dynamic_relations == 2:
        blocks = values[0].new_zeros(*values[0].shape[:-2], len(order_J), len(order_J))
        for number, value in enumerate(values):
            place = slice(number * dimension, (number + 1) * dimension)
            blocks[..., place, place] = value
        return blocks[..., order_J, :][..., order_J].contiguous()
    return torch.cat(list(values), -1)[..., order_J]


def _joined_sums(
    config: Config, key: PartitionKey, members: Sequence[PbgCheckpoint], shape: tuple[int, int]
) -> Tensor:
    """Adagrad's sums of a partition: [N, J], or row-wise [N]."""
    optimizer = config.train.optimizer
    sums = [
        sums_of_table_state(
            pbg.read_optimizer_state(member.uri, *key, member.version) or {},
            optimizer,
            shape,
            member.embeddings_uri(*key),
        )
        for member in members
    ]
    if optimizer == "row_adagrad":
        return torch.stack(sums).mean(0)
    return torch.cat(sums, 1)[:, order(config, shape[1])]
