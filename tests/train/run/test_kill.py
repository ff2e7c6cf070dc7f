"""Kill -9 at any moment of training: the next run ends with the same bytes as one that nobody disturbed."""

import re

import pytest

from tests.train.graphs import changed
from tests.train.kill_driver import kill_anywhere
from tests.train.run.test_trainer import COUNTS, RELATIONS, mixed, write_mixed
from tests.train.vectors import raw_ids, write_index, write_vectors

PLACEMENTS = {
    "files": {},
    "device": {"resident": "always"},
    "buffer": {"device_partitions": 3},
    "ensemble": {"ensemble": 2},
    "vectors": {"ensemble": 2},
}
IN_KERNELS = [
    {**relation, "operator": "complex_diagonal"} for relation in RELATIONS
]  # else not on the device


def with_vectors(config, path, rng):
    """The configuration with vectors, longer than the rows, that half of the users start from."""
    ids = list(raw_ids(COUNTS["user"], config.entities["user"].num_partitions))
    write_index(config, {"user": ids})
    write_vectors(path, ids[::2], rng.normal(size=(len(ids[::2]), 2 * config.dimension)))
    train = config.model_dump()["train"] | {"init_embeddings": {"user": str(path)}}
    return changed(config, train=train)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("placement", "every"), [("files", 11), ("device", 13), ("buffer", 17), ("ensemble", 43), ("vectors", 41)]
)
def test_kill_anywhere_and_run_again(tmp_path, rng, placement, every):
    in_files = placement in ("files", "ensemble", "vectors")
    config = mixed(
        tmp_path,
        eval_fraction=0.1,
        checkpoint_preservation_interval=1,
        batch_size=20,
        num_batch_negs=10,
        bucket_order="random",
        train=PLACEMENTS[placement],
        **({} if in_files else {"relations": IN_KERNELS, "global_emb": False}),
    )
    write_mixed(config, rng)
    if placement == "vectors":
        config = with_vectors(config, tmp_path / "vectors.parquet", rng)
    order = kill_anywhere(
        config, every, 0 if in_files else 0.005
    )  # for files that are written beside the steps
    # two epochs of nine buckets, each with several steps and renames: a sample of all the moments
    assert len(order) > 80
    # two versions of each model: where all rows stay in memory, steps come between the files of the first
    runs = re.findall("c+", order.replace(".", ""))
    assert (len(runs) > 2 * config.train.ensemble) == (not in_files)
