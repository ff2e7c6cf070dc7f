"""Kill -9 at any moment of training: the next run ends with the same bytes as one that nobody disturbed."""

import json
import signal
import subprocess
import sys

import pytest

from tests import REPOSITORY
from tests.train.run.test_trainer import mixed, write_mixed


@pytest.mark.slow
def test_kill_anywhere_and_run_again(tmp_path, rng):
    config = mixed(
        tmp_path,
        eval_fraction=0.1,
        checkpoint_preservation_interval=1,
        batch_size=20,
        num_batch_negs=10,
        bucket_order="random",
    )
    write_mixed(config, rng)
    conf = tmp_path / "conf.yaml"
    conf.write_text(json.dumps(config.model_dump(mode="json")))
    done = subprocess.run(
        [sys.executable, "-m", "tests.train.kill_driver", str(conf), "7"],
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
    assert report["events"] > 100
    assert len(report["points"]) > 15
    for number, (killed_by, finished, differing) in enumerate(report["points"]):
        assert killed_by == signal.SIGKILL, number
        assert finished == 0, (number, done.stderr)
        assert differing == [], number
