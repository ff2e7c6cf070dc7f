"""The training stage: bucket files and entity counts -> a checkpoint.

checkpoint_path/
  graphmill.json      settings and inputs of the checkpoint (train/run/claim.py)
  ...                 PBG v1 (graphmill/checkpoints/pbg)
  members/            the models of an ensemble (train/run/ensemble.py)
  initial/            first rows, while a run begins (train/tables/given_rows.py)
  _SUCCESS            when all epochs are done
"""

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from distributed import Client

from graphmill import cluster, storage
from graphmill.checkpoints import pbg, recognise
from graphmill.config import Config, PbgConfig
from graphmill.config.partitions import PartitionKey
from graphmill.convert.legacy import import_legacy_inputs
from graphmill.errors import ConfigError, NotFoundError
from graphmill.model import comparators
from graphmill.model.built_in import OF_NEGATIVES, OPERATORS
from graphmill.run.auto_values import describe, resolve_auto_values
from graphmill.run.lock import NO_CLAIM, Claim
from graphmill.run.output_checks import check_folder
from graphmill.run.trained_with import changes_in_errors
from graphmill.storage import Checksums
from train.distributed.coordinator import Coordinator
from train.edges.schedule import why_whole
from train.model.frozen import Frozen
from train.plan.plan import announced
from train.plan.plan import estimate as estimate
from train.run import ensemble
from train.run.claim import check_claim, claim_checkpoint, claimed, end_training, moved_aside, trained_with
from train.run.claim import input_uris as input_uris
from train.run.run_metrics import warn_of_growing_loss
from train.tables import folded_rows, given_rows, given_vectors

# Names of files that only checkpoints have, ours or PBG's, even before version 1.
_CHECKPOINT_FILES = (
    r"checkpoint_version\.txt|CHECKPOINT_VERSION|graphmill\.json|(?:embeddings_.+_\d+|model)\.v\d+\.h5"
    r"|METADATA_\d+\.pt.*"
)
# Other files that may be there before the first version; without `output` the run's record is one.
_OTHER_FILES = r"config\.json|training_stats\.json|tensorboard|run\.json|report\.html|tune"

log = logging.getLogger("graphmill")


def check(config: Config, coming: Collection[str] = ()) -> str:
    """Refuse a run that cannot train, before any file changes; the folders `coming` are still to be written.

    Raises ConfigError: settings contradict each other, or `train.on_change` forbids to go on and to start
    anew, or there are no edges to validate on.
    """
    if config.init_path and storage.absolute(config.init_path) == storage.absolute(config.checkpoint_path):
        raise ConfigError(
            f"init_path: {config.init_path} is also checkpoint_path; a new run needs a checkpoint_path of "
            "its own, and one that goes on needs no init_path"
        )
    if config.init_path:
        recognise(config.init_path)
    _check_negatives(config)
    Frozen.of(config)
    if config.train.on_change != "resume" or not pbg.read_version(config.checkpoint_path):
        given_vectors.check(config)
    _check_needs(config)
    check_claim(config, coming)
    if config.train.ensemble > 1:
        for member in ensemble.members_of(config):
            check_claim(member, coming)
    return ""


def _check_negatives(config: Config) -> None:
    needs_them = config.loss_fn in OF_NEGATIVES and not any(each.all_negs for each in config.relations)
    if needs_them and not config.num_batch_negs and not config.num_uniform_negs:
        raise ConfigError(
            "num_batch_negs, num_uniform_negs: found 0 for both, and no relation with all_negs: edges "
            "without negatives train nothing; set one of them"
        )


def _check_needs(config: Config) -> None:
    """Refuse settings of `train` that lack the settings which they need."""
    settings, comparator = config.train, config.comparator
    has_all_negs = [relation.all_negs for relation in config.relations]
    operators = sorted({relation.operator for relation in config.relations})
    no_bias = {"bias: false": config.bias}
    dot = {f"comparator dot (found {comparator!r})": comparator != "dot"} | no_bias
    softmax = {f"loss_fn softmax (found {config.loss_fn!r})": config.loss_fn != "softmax"}
    if settings.candidates is not None:
        is_product = comparators.is_dot(comparator, bias=False)
        product = {f"comparator dot or cos (found {comparator!r})": not is_product}
        needed = {"a relation with all_negs": not any(has_all_negs)} | softmax | product | no_bias
        _require(needed, "train.candidates needs", "leave it out")
    if settings.popularity:
        needed = {"all_negs for all relations": not all(has_all_negs)} | softmax | dot
        needed |= {f"operator none (found {', '.join(operators)})": operators != ["none"]}
        _require(needed, "train.popularity needs", "set it to false")
    if settings.relation_prediction:
        products = [name for name, operator in OPERATORS.items() if operator.is_product]
        is_other = config.relations[0].operator not in products
        needed = {"dynamic_relations": not config.dynamic_relations} | dot
        needed |= {f"operator {' or '.join(products)} (found {operators[0]!r})": is_other}
        _require(needed, "train.relation_prediction needs", "set it to 0")
    if settings.ensemble > 1:
        plug_ins = [name for name in operators if name not in OPERATORS]
        needed = dot | {f"built-in operators (found {', '.join(plug_ins)})": bool(plug_ins)}
        adds = f"train.ensemble: {settings.ensemble} adds up the scores of its members and needs"
        _require(needed, adds, "set it to 1")


def _require(needed: Mapping[str, bool], needs: str, otherwise: str) -> None:
    """Refuse a run that lacks some of the settings `needed`, whose value says so."""
    if missing := [setting for setting, is_missing in needed.items() if is_missing]:
        raise ConfigError(f"{needs} {', '.join(missing)}; or {otherwise}")


def run(config: Config, client: Client, claim: Claim = NO_CLAIM) -> dict[str, Any]:
    """Train until all epochs are done; returns the figures for run.json."""
    check(config)
    if not storage.is_dir(config.entity_path):
        raise NotFoundError(f"{config.entity_path}: there are no entities; run the stage etl first")
    config = one_worker_per_gpu(resolve_auto_values(import_legacy_inputs(config)))
    _announce(config)
    claim.check()
    with claimed(config, claim) as changes, announced(client), changes_in_errors(config):
        figures = _train(config, client, claim)
    claim.check()
    if changes and not figures["num_edges"]:
        log.warning("training: nothing was left to train: raise num_epochs, the total, to go on")
    warn_of_growing_loss(config, figures.get("epochs", ()))
    figures |= _end(config, claim)
    if paths := _graphstorm_paths(config):
        arguments = config, paths, claim.of(*paths.values())
        cluster.run_task(client, save_for_graphstorm, *arguments, description="saving for GraphStorm")
    return figures


def _announce(config: Config) -> None:
    """Log what the data have decided, which edges are trained, and what may not be meant."""
    if config.chosen:
        log.info("training: %s", describe(config))
    log_ignored_keys(config)
    warn_of_drawn(config)
    if why := why_whole(config):
        log.info("training: train.replay: all edges are trained, because %s", why)
    elif why is not None:
        log.info("training: edges that etl has added, and %g others for each", config.train.replay)


def _train(config: Config, client: Client, claim: Claim) -> dict[str, Any]:
    """Train the model, or the members of an ensemble, which are joined unless the committed version is so."""
    members, in_task = ensemble.members_of(config), claim.of(config.checkpoint_path)
    for member in members:
        if member is not config:
            claim_checkpoint(member)
        folded_rows.make(member, client, claim)
    if given_vectors.is_needed(members[0], members):
        cluster.run_task(client, given_vectors.make, members[0], in_task, description="vectors")
    for line in given_vectors.told(members[0]):
        log.info("training: %s", line)
    trained = _train_members(members, client, claim, in_task)
    if members == [config]:
        return trained[0]
    claim.check()
    before = pbg.read_version(config.checkpoint_path)
    if not ensemble.is_joined(config):
        pbg.delete_uncommitted(config.checkpoint_path)
        first = members[0].checkpoint_path
        counts = pbg.num_partitions(first, pbg.read_version(first))
        keys = [(name, partition) for name, count in counts.items() for partition in range(count)]
        tasks = [(config, key, before + 1, in_task) for key in keys]
        written = cluster.run_tasks(client, join_partition, tasks, description="joining", unit="partitions")
        checksums = {uri: text for of_partition in written for uri, text in of_partition.items()}
        cluster.run_task(client, join_model, config, before + 1, checksums, in_task, description="joining")
    return ensemble.figures(config, before, trained)


def _end(config: Config, claim: Claim) -> dict[str, Any]:
    """Mark all checkpoints as trained, and delete first rows, which versions hold; return more figures."""
    members, figures = ensemble.members_of(config), dict[str, Any]()
    paths = dict.fromkeys(model.checkpoint_path for model in (*members, config))
    for path in paths:
        end_training(path)
    if given := given_vectors.figures(config):
        figures["init_embeddings"] = given
    new_ids = given_rows.figures_of(folded_rows.folder_of(members[0]))
    for folder in (given_rows.folder_of(config), *map(folded_rows.folder_of, members)):
        given_rows.delete(folder, claim)  # maybe of a run that was killed and had other settings
    if why := why_whole(config):
        figures |= {"delta": None, "delta_reason": why}
    elif why is not None:
        figures["delta"] = {"replay": config.train.replay, "new_ids": new_ids}
    if aside := [folder for path in sorted(paths) for folder in moved_aside(path)]:
        figures["moved_aside"] = aside  # only the user deletes these
    return figures


def _train_members(
    members: Sequence[Config], client: Client, claim: Claim, in_task: Claim
) -> list[dict[str, Any]]:
    """Train models side by side, one on a worker, or one after the other where each takes all workers.

    `in_task` is the part of `claim` that tasks check.
    """
    hosts = cluster.workers_by_host(client)
    at_once = min(len(members), hosts.total())
    is_one_worker = members[0].train.num_workers == 1
    trained: list[dict[str, Any]] = []
    if at_once < 2 or not is_one_worker or members[0].num_gpus == 1:
        for number, member in enumerate(members, start=1):
            if len(members) > 1:
                log.info("training: model %d of %d, in %s", number, len(members), member.checkpoint_path)
            if is_one_worker:
                trained.append(cluster.run_task(client, train, member, in_task, description="training"))
            else:
                trained.append(Coordinator.on(client, member, claim).run())
        return trained
    num_on_host = min(at_once, max(hosts.values()))
    tasks = [(member, in_task, num_on_host) for member in members]
    with cluster.shown_by_worker(client):
        for first in range(0, len(members), at_once):
            now = tasks[first : first + at_once]
            trained += cluster.run_tasks(client, train, now, description="members", unit="models")
    return trained


def warn_of_drawn(config: Config) -> None:
    """Warn of frozen types whose vectors come from nowhere: they keep their first random values."""
    types = Frozen.of(config).types
    if not types or pbg.read_version(config.checkpoint_path):
        return
    path = config.init_path
    known = {*given_rows.given_paths(config)}
    if path:
        known |= set(pbg.num_partitions(path, pbg.read_version(path)))
    if drawn := sorted(types - known):
        log.warning(
            "training: train.freeze: %s: %s, so the vectors stay as they are drawn",
            ", ".join(drawn),
            f"{path} has none" if path else "there is no init_path",
        )


def one_worker_per_gpu(config: Config) -> Config:
    """Set one worker per GPU where train.num_workers is not set; members of an ensemble have a GPU each."""
    settings = config.train
    if config.num_gpus > 1 and settings.ensemble == 1 and "num_workers" not in settings.model_fields_set:
        return config.with_section(settings.model_copy(update={"num_workers": config.num_gpus}))
    return config


def fingerprint(config: Config) -> dict[str, Any]:
    """The settings and inputs that the checkpoint depends on."""
    saved = {"saved_for_graphstorm": paths} if (paths := _graphstorm_paths(config)) else {}
    return trained_with(config) | {"num_epochs": config.num_epochs} | saved


def output_uris(config: Config) -> list[str]:
    """The checkpoint."""
    return [config.checkpoint_path]


def written_uris(config: Config) -> list[str]:
    """The checkpoint, and the outputs for GraphStorm."""
    return [config.checkpoint_path, *_graphstorm_paths(config).values()]


def check_outputs(config: Config) -> None:
    """Refuse a checkpoint_path that holds other files; a checkpoint of PBG, of any version, is resumed."""
    names = {storage.name(entry.uri) for entry in storage.list_dir(config.checkpoint_path)}
    if not any(map(re.compile(_CHECKPOINT_FILES).fullmatch, names)):
        check_folder(config.checkpoint_path, _OTHER_FILES, "checkpoint_path", "and no checkpoint")


def train(config: Config, claim: Claim = NO_CLAIM, num_on_host: int = 1) -> dict[str, Any]:
    """Train one model in this process, with its part of the cores of `num_on_host`; resumes after a kill."""
    from graphmill.cluster import runtime  # imports torch: only workers need it
    from train.run.trainer import Trainer

    runtime.keep_freed_memory()
    with runtime.cpu_threads(config.workers or max(1, cluster.num_cores() // num_on_host)):
        return Trainer(config, claim).run()


def join_partition(config: Config, key: PartitionKey, version: int, claim: Claim = NO_CLAIM) -> Checksums:
    """Join a partition of the members of an ensemble in this process."""
    from train.run import joined  # imports torch

    return joined.join_partition(config, key, version, claim)


def join_model(config: Config, version: int, checksums: Checksums, claim: Claim = NO_CLAIM) -> None:
    """Join the models of the members of an ensemble, and commit, in this process."""
    from train.run import joined  # imports torch

    joined.join_model(config, version, checksums, claim)


def save_for_graphstorm(config: Config, paths: dict[str, str], claim: Claim = NO_CLAIM) -> None:
    """Write GraphStorm's layouts of the committed version in this process."""
    from train.run import graphstorm_output  # imports torch

    graphstorm_output.save(config, paths.get("save_embed_path"), paths.get("save_model_path"), claim)


def _graphstorm_paths(config: Config) -> dict[str, str]:
    chosen = config.train.model_dump(include={"save_embed_path", "save_model_path"})
    return {name: storage.absolute(path) for name, path in chosen.items() if path}


_FILES = "partitions are files of the checkpoint, which the workers read and write themselves"
REPLACED = {
    "num_machines": "train.num_workers sets how many Dask workers share the buckets",
    "num_partition_servers": _FILES,
    "num_groups_for_partition_server": _FILES,
    "num_groups_per_sharded_partition_server": _FILES,
    "partition_shard_size": _FILES,
    "distributed_init_method": "the Dask cluster connects the workers: --master, or the section `cluster`",
    "distributed_tree_init_order": "several workers start from one bucket in any case",
    "hogwild_delay": "threads start together, and share the sums of Adagrad from the first batch on",
    "background_io": "train.prefetch, which is on by default where it takes no memory from partitions",
    "verbose": "--debug shows all messages",
}


def log_ignored_keys(config: PbgConfig) -> None:
    """Log the keys without effect that differ from their default."""
    for key, instead in REPLACED.items():
        value = getattr(config, key)
        if value != type(config).model_fields[key].default:
            log.info("training: %s: %s has no effect: %s", key, value, instead)
    if config.loss_fn == "logistic" and config.comparator == "cos":
        log.warning("training: logistic learns little with comparator cos, whose scores lie in [-1, 1]")
    if config.num_epochs == 0:
        log.warning("training: num_epochs: 0 trains nothing: the stages that need a checkpoint will stop")
