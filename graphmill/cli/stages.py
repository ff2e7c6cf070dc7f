"""The stages of a run, in their order. To add a stage, add it here."""

from collections.abc import Iterable

from etl import job as etl_job
from etl.run.outputs import shared_uris
from graphmill import storage
from graphmill.ask import drift
from graphmill.ask.evaluate import job as evaluate_job
from graphmill.config import Config
from graphmill.formats.edge_buckets import bucket_uri
from graphmill.run.fingerprints import are_small
from graphmill.run.job import Stage
from graphmill.vocab import Bucket
from remap import job as remap_job
from train import job as train_job

ETL = Stage("etl", etl_job, keeps_work=True, shared_uris=shared_uris)
TRAIN = Stage("train", train_job, keeps_work=True)
EVALUATE = Stage("evaluate", evaluate_job)
REMAP = Stage("remap", remap_job)
DRIFT = Stage("drift", drift)
STAGES = (ETL, TRAIN, EVALUATE, REMAP, DRIFT)


def stages_of(config: Config) -> list[Stage]:
    """List the stages of a whole run: without etl where the configuration has buckets in place of tables."""
    has_buckets = config.etl is None and storage.exists(bucket_uri(config.edge_paths[0], Bucket(0, 0)))
    left_out = [ETL] * has_buckets + [DRIFT] * (config.drift is None)
    return [stage for stage in STAGES if stage not in left_out]


def are_small_stages(config: Config, stages: Iterable[Stage]) -> bool:
    """Tell whether each of the stages reads little, and processes do not share the training."""
    num_trainers = max(config.train.num_workers, config.num_gpus)
    return num_trainers < 2 and all(are_small(stage.job.input_uris(config)) for stage in stages)
