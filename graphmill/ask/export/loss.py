"""The loss of quality that an export costs, measured by the stage evaluate itself.

A checkpoint of decoded vectors is written, with the model of the run. The stage ranks with the run's
checkpoint and with that one: the same edges, candidates and code. The folder ends with the measurement.

    {folder}/checkpoint/    decoded vectors; a type that is not exported as the run has it
"""

from collections.abc import Mapping
from typing import Any

from distributed import Client

from graphmill import storage
from graphmill.ask.entities import EntityTable, EntityTables
from graphmill.ask.evaluate import job as evaluation
from graphmill.ask.export.fitting import Source
from graphmill.ask.run import TrainedRun
from graphmill.checkpoints import pbg
from graphmill.checkpoints.checkpoint import ModelState, rows_of_batch
from graphmill.cluster import run_tasks
from graphmill.config import Config
from graphmill.run.lock import NO_CLAIM, Claim

_NAMES = ("mrr", "hits@1", "hits@10", "mean_rank")
_VERSION = 1


def obstacle(config: Config, folder: str) -> str:
    """Return the reason why nothing can be measured, or ""."""
    return evaluation.check(_settings(config, config.checkpoint_path, None, folder))


def measure(
    trained: TrainedRun,
    tables: EntityTables,
    sources: Mapping[str, Source],
    folder: str,
    client: Client,
    claim: Claim = NO_CLAIM,
) -> dict[str, Any]:
    """Rank with the vectors of the run and with decoded ones; return the metrics of both."""
    storage.delete(folder)
    decoded_path = storage.join(folder, "checkpoint")
    write_decoded(trained, tables, sources, decoded_path, client)
    places = {"exact": (trained.checkpoint_path, trained.version), "decoded": (decoded_path, _VERSION)}
    evaluated = {
        name: evaluation.run(_settings(trained.config, path, version or None, folder), client, claim)
        for name, (path, version) in places.items()
    }
    metrics = {name: {key: figures["metrics"][key] for key in _NAMES} for name, figures in evaluated.items()}
    counts = {key: evaluated["decoded"]["metrics"][key] for key in ("num_edges", "of_edges")}
    losses = {
        f"{key}_loss": metrics["exact"][key] - metrics["decoded"][key] for key in _NAMES if key != "mean_rank"
    }
    storage.delete(folder)
    return {"split": evaluated["decoded"]["split"]} | counts | metrics | losses


def write_decoded(
    trained: TrainedRun,
    tables: EntityTables,
    sources: Mapping[str, Source],
    checkpoint_path: str,
    client: Client,
) -> None:
    """Write a checkpoint of decoded vectors; one task for each partition."""
    checkpoint = trained.open_checkpoint(allow_non_finite=False)
    content = checkpoint.config or trained.config.pbg()
    checksums = pbg.write_config(checkpoint_path, content)
    arguments = [
        (table, part.partition, sources.get(name), checkpoint_path, content)
        for name, table in tables.items()
        for part in table.parts
    ]
    written = run_tasks(
        client, decode_partition, arguments, description="decoding to measure", unit="partitions"
    )
    checksums |= {uri: digest for digests in written for uri, digest in digests.items()}
    model = checkpoint.read_model() or ModelState({}, None)
    pbg.write_model(
        checkpoint_path, _VERSION, model.parameters, None, content, checkpoint.iteration, checksums
    )
    pbg.commit(checkpoint_path, _VERSION, preserve_epoch=None, checksums=checksums)


def decode_partition(
    table: EntityTable, partition: int, source: Source | None, checkpoint_path: str, content: dict[str, Any]
) -> dict[str, str]:
    """Write the decoded vectors of a partition, without the type's global embedding; return the checksum."""
    checksums: dict[str, str] = {}
    checkpoint = table.trained.open_checkpoint(allow_non_finite=False)
    global_D = checkpoint.global_embedding(table.entity_type)

    def rows() -> Any:
        for _, vectors_ND in table.blocks(partition, rows_of_batch(table.dimension)):
            decoded_ND = vectors_ND
            if source is not None:
                decoded_ND = source.codec.decode(source.codec.encode(source.prepare(vectors_ND)))
            yield decoded_ND if global_D is None else decoded_ND - global_D

    pbg.write_embeddings(
        checkpoint_path,
        table.entity_type,
        partition,
        _VERSION,
        rows(),
        None,
        content,
        checkpoint.iteration,
        checksums,
        shape=(table.parts[partition].num_rows, table.dimension),
    )
    return checksums


def _settings(config: Config, checkpoint_path: str, version: int | None, folder: str) -> Config:
    """The run with another checkpoint; the stage works in `folder`, and fits no probabilities."""
    changed = {"calibrate": None, "checkpoint_version": version, "enabled": True}
    config = config.with_section(config.evaluate.model_copy(update=changed))
    return config.model_copy(update={"checkpoint_path": checkpoint_path, "output": folder})
