"""Kill -9 at any moment of training: the next run ends with the same bytes as one that nobody disturbed."""

import json
import re
import signal
import subprocess
import sys

import pytest

from graphmill.config import from_mapping
from tests import REPOSITORY
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
    return from_mapping(config.model_dump() | {"train": train})


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
    conf = tmp_path / "conf.yaml"
    conf.write_text(json.dumps(config.model_dump(mode="json")))
    step_s = 0 if in_files else 0.005  # for files that are written beside the steps
    done = subprocess.run(
        [sys.executable, "-m", "tests.train.kill_driver", str(conf), str(every), str(step_s)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["status"] == 0
    # two epochs of nine buckets, each with several steps and renames: a sample of all the moments
    assert len(report["order"]) > 80
    assert len(report["points"]) > 5
    # two versions of each model: where all rows stay in memory, steps come between the files of the first
    runs = re.findall("c+", report["order"].replace(".", ""))
    assert (len(runs) > 2 * config.ensemble) == (not in_files)
    for number, (killed_by, finished, differing) in enumerate(report["points"]):
        assert killed_by == signal.SIGKILL, number
        assert finished == 0, (number, done.stderr)
        assert differing == [], number
