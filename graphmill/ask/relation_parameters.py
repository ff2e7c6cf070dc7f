"""Table of the relations' parameters, beside the embeddings.

embeddings/_relations.parquet       readers of folders skip names that begin with _
    relation    string              its name
    lhs, rhs    string              its entity types
    operator    string
    side        string              the side of an edge that the operator transforms
    parameter   string              name in a checkpoint: diagonal, real, ...
    shape       list<int64>
    values      list<float>         in the order of rows
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from graphmill import storage
from graphmill.ask.run import TrainedRun
from graphmill.config import Config, RelationConfig
from graphmill.errors import ConfigError
from graphmill.model.parameters import parse_operator_key
from graphmill.storage import Checksums

RELATIONS = "_relations.parquet"
_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("relation", "lhs", "rhs", "operator", "side", "parameter")),
        ("shape", pa.list_(pa.int64())),
        ("values", pa.list_(pa.float32())),
    ]
)


def write_relation_parameters(trained: TrainedRun, uri: str, checksums: Checksums) -> int:
    """Write the table, and add its checksum; return its rows: one for each parameter of each relation.

    Raises:
        ConfigError: the checkpoint holds no relations, or others than the configuration.
        FormatError: a parameter is not finite.
    """
    config = trained.config
    parameters = trained.open_checkpoint(allow_non_finite=trained.allow_non_finite).read_parameters()
    if parameters is None:
        raise ConfigError(f"remap.relations: {trained.checkpoint_path} holds no relations; set it to false")
    rows: list[dict[str, Any]] = []
    for key, value in parameters.items():
        operator_key = parse_operator_key(key)
        if operator_key is None:
            continue
        relation = _relation(config, operator_key.relation, f"{trained.checkpoint_path}: {key}")
        names = trained.relation_names if config.dynamic_relations else [relation.name]
        arrays = value if config.dynamic_relations else value[None]
        if len(names) != len(arrays):
            raise ConfigError(
                f"remap.relations: {trained.checkpoint_path}: {key}: expected {len(names)} relations, as "
                f"{config.entity_path} counts, found {len(arrays)}"
            )
        for name, array in zip(names, arrays, strict=True):
            rows.append(
                {
                    "relation": name,
                    "lhs": relation.lhs,
                    "rhs": relation.rhs,
                    "operator": relation.operator,
                    "side": operator_key.side.value,
                    "parameter": operator_key.parameter,
                    "shape": list(array.shape),
                    "values": np.asarray(array, np.float32).reshape(-1),
                }
            )
    with storage.atomic_output(uri, checksums=checksums) as stream:
        pq.write_table(pa.Table.from_pylist(rows, _SCHEMA), stream, write_page_checksum=True)
    return len(rows)


def _relation(config: Config, number: int, where: str) -> RelationConfig:
    if number < len(config.relations) and config.relations[number].operator != "none":
        return config.relations[number]
    raise ConfigError(
        f"remap.relations: {where}: the configuration has no operator of a relation {number}; "
        "give --conf with the relations that were trained, or set it to false"
    )
