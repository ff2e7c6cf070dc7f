"""Memory of workers: who decides it, and the least that a stage needs."""

from contextlib import nullcontext
from typing import Any

import pytest
from distributed import system
from hypothesis import given
from hypothesis import strategies as st

from graphmill.cluster import resources
from graphmill.config.sections.cluster import ClusterConfig
from graphmill.errors import ConfigError

STAGES = ("etl", "train", "evaluate", "remap", "drift")
MASTERS = ("local", "local[3]", "local[*]", "ssh://a,b", "yarn")


@given(st.sampled_from(MASTERS), st.lists(st.sampled_from(STAGES), unique=True), st.integers(1, 2000))
def test_less_than_the_least_of_any_stage_is_refused(master: str, stages: list[str], mib: int) -> None:
    settings = ClusterConfig(worker_memory=f"{mib}MiB")
    least = 768 if {"train", "evaluate"} & set(stages) else 256  # with PyTorch
    expected: Any = nullcontext()
    if mib < least:
        expected = pytest.raises(
            ConfigError, match=f"worker_memory: expected at least {least}MiB.*found {mib}MiB"
        )
    with expected:
        resources.check_memory(master, settings, stages)


@pytest.mark.parametrize("master", ["tcp://a:1", "tls://a:1", "cuda"])
def test_others_decide_the_memory_of_a_running_cluster(master: str) -> None:
    resources.check_memory(master, ClusterConfig(worker_memory="10MiB"), STAGES)


def test_zero_is_no_limit_but_on_yarn() -> None:
    assert resources.memory_of("local[1]", ClusterConfig(worker_memory="0")) is None
    with pytest.raises(ConfigError, match="at least 1 MiB"):
        resources.check_memory("yarn", ClusterConfig(worker_memory="0"))


def test_workers_have_an_equal_share_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "MEMORY_LIMIT", 2 << 30)
    assert resources.memory_of("local[1]", ClusterConfig()) == 2 << 30
    assert resources.memory_of("local[4]", ClusterConfig()) == 512 << 20
    resources.check_memory("local[4]", ClusterConfig(), ["etl"])
    with pytest.raises(
        ConfigError, match=r"local\[4\]: expected at least 768MiB for train, found 512MiB.*fewer"
    ):
        resources.check_memory("local[4]", ClusterConfig(), ["etl", "train"])
