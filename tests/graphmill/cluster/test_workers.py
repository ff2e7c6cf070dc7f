"""Checks of running workers: their packages, versions and memory."""

import importlib.metadata
import os
import platform
import re
import subprocess
import time
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client, system
from hypothesis import given
from hypothesis import strategies as st

from graphmill import cluster
from graphmill.cluster import resources, workers
from graphmill.cluster.connecting import STARTERS
from graphmill.cluster.local import place_of
from graphmill.config.masters import FORMS, KINDS, kind_of
from graphmill.config.sections.cluster import ClusterConfig
from graphmill.errors import ConfigError, StorageError
from tests import REPOSITORY
from tests.finished import environment

MODULE = "def answer():\n    return 42\n"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a scheduler and a worker whose Python has all packages but GraphMill."""
    folder = tmp_path_factory.mktemp("bare")
    environment(folder / "environment")
    python = str(folder / "environment" / "bin" / "python")
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    with ExitStack() as stack:

        def start(*words: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [python, "-m", "dask", *words], cwd=folder, env=variables, stderr=subprocess.PIPE, text=True
            )
            stack.callback(process.communicate)
            stack.callback(process.terminate)
            return process

        scheduler = start("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
        line = next(line for line in scheduler.stderr if "Scheduler at:" in line)
        address = line.split("Scheduler at:")[1].strip()
        start("worker", address, "--nthreads", "1", "--no-dashboard", "--local-directory", str(folder))
        with Client(address, timeout=300) as client:
            client.wait_for_workers(1, timeout=300)
        yield address


def test_what_a_worker_lacks_is_named_and_the_smallest_memory_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {name: importlib.metadata.version(name) for name in workers.MUST_AGREE}
    there |= {"graphmill": workers.__version__, "python": ".".join(platform.python_version_tuple()[:2])}
    workers._check_versions("the scheduler", there)
    with pytest.raises(ConfigError, match=r"w: h5py is missing there.*torch is missing there"):
        workers._check_versions("w", there)
    described = {"a": {"memory_limit": 5}, "b": {"memory_limit": 3}, "c": {}}
    monkeypatch.setattr(workers, "described_workers", lambda client: described)
    assert cluster.memory_of_workers(None) == 3


@pytest.mark.slow
def test_the_package_is_brought_to_workers_that_lack_it(bare: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "graphmill")
    with cluster.connect(bare, ClusterConfig()) as client:
        assert cluster.run_tasks(client, cluster.num_cores, [()], description="counting")
        place = client.submit(eval, "__import__('etl').__file__").result()
    assert f"graphmill-{importlib.metadata.version('graphmill')}.zip/etl" in place
    assert any("workers lack graphmill; uploading it" in message for message in caplog.messages)
    assert any("MALLOC_TRIM_THRESHOLD_=268435456" in message for message in caplog.messages)


def test_the_package_may_have_files_of_1970(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "installed" / "antique" / "__init__.py"
    module.parent.mkdir(parents=True)
    module.write_text(MODULE)
    os.utime(module, (0, 0))
    monkeypatch.syspath_prepend(tmp_path / "installed")
    monkeypatch.setattr(workers, "PACKAGES", ("antique",))
    with zipfile.ZipFile(workers.own_package(tmp_path)) as package:
        assert package.read("antique/__init__.py").decode() == MODULE


@pytest.mark.slow
def test_versions_that_differ_are_named_with_the_worker(bare: str, monkeypatch: pytest.MonkeyPatch) -> None:
    true_version = importlib.metadata.version
    false_version = {"dask": "1999.1"}.get
    monkeypatch.setattr(importlib.metadata, "version", lambda of: false_version(of) or true_version(of))
    with pytest.raises(ConfigError, match=rf"tcp://.*: dask is {true_version('dask')} there and 1999.1 here"):
        cluster.connect(bare, ClusterConfig()).__enter__()


@pytest.mark.usefixtures("forking_workers")
@pytest.mark.slow
def test_py_files_are_imported_by_workers(tmp_path: Path) -> None:
    (tmp_path / "graphmill_test_module.py").write_text(MODULE)
    with zipfile.ZipFile(tmp_path / "graphmill_test_wheel-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("graphmill_test_wheel/__init__.py", MODULE)
    files = tuple(str(path) for path in sorted(tmp_path.iterdir()))
    with cluster.connect("local[1]", ClusterConfig(py_files=files)) as client:
        for name in ("graphmill_test_module", "graphmill_test_wheel"):
            assert client.submit(eval, f"__import__({name!r}).answer()").result() == 42
    (tmp_path / "lacking.py").write_text("import there_is_no_such_module")
    for name, message in (
        ("x.txt", r"x\.txt: expected a \.py"),
        ("lacking.py", r"lacking\.py: a worker cannot import it: ModuleNotFound"),
    ):
        wrong = ClusterConfig(py_files=(str(tmp_path / name),))
        with pytest.raises(ConfigError, match=f"--py-files .*{message}"), cluster.connect("local[1]", wrong):
            pass


def test_a_scratch_folder_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = ClusterConfig(scratch_path=str(tmp_path / "file"))
    with pytest.raises(StorageError, match="cannot make the folder") as refused:
        cluster.connect("local[1]", settings).__enter__()
    assert refused.value.exit_code == 2


def test_addresses_of_workers_however_late_the_answer_is_read(client, monkeypatch):
    """Again and again, Dask's client replaces what it knows of the cluster by what names no worker."""
    often = dask.config.set({"distributed.client.scheduler-info-interval": "10ms"})
    with often, Client(client.scheduler.address) as another:
        sync = another.sync

        def sync_and_stand_still(*arguments: Any, **named: Any) -> Any:
            answer = sync(*arguments, **named)
            time.sleep(0.5)
            return answer

        monkeypatch.setattr(another, "sync", sync_and_stand_still)
        assert len(cluster.worker_addresses(another)) == 2
        monkeypatch.undo()


STAGES = ("etl", "train", "evaluate", "remap", "drift")
MASTERS = ("local", "local[3]", "local[*]", "ssh://a,b", "yarn")


@given(st.sampled_from(MASTERS), st.lists(st.sampled_from(STAGES), unique=True), st.integers(1, 2000))
def test_less_than_the_least_of_any_stage_is_refused(master: str, stages: list[str], mib: int) -> None:
    settings = ClusterConfig(worker_memory=f"{mib}MiB")
    least = 768 if {"train", "evaluate"} & set(stages) else 256  # with PyTorch
    message = f"worker_memory: expected at least {least}MiB.*found {mib}MiB"
    with pytest.raises(ConfigError, match=message) if mib < least else nullcontext():
        resources.check_memory(master, settings, stages)


def test_others_decide_the_memory_of_a_running_cluster_and_zero_is_no_limit_but_on_yarn() -> None:
    for master in ("tcp://a:1", "tls://a:1", "cuda"):
        resources.check_memory(master, ClusterConfig(worker_memory="10MiB"), STAGES)
    assert resources.memory_of("local[1]", ClusterConfig(worker_memory="0")) is None
    with pytest.raises(ConfigError, match="at least 1 MiB"):
        resources.check_memory("yarn", ClusterConfig(worker_memory="0"))


def test_workers_have_an_equal_share_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "MEMORY_LIMIT", 2 << 30)
    assert resources.memory_of("local[1]", ClusterConfig()) == 2 << 30
    assert resources.memory_of("local[4]", ClusterConfig()) == 512 << 20
    resources.check_memory("local[4]", ClusterConfig(), ["etl"])
    too_little = r"local\[4\]: expected at least 768MiB for train, found 512MiB.*fewer"
    with pytest.raises(ConfigError, match=too_little):
        resources.check_memory("local[4]", ClusterConfig(), ["etl", "train"])


EXAMPLES = ("local", "local[2]", "local[*]", "cuda", "yarn", "ssh://me@h1:22,h2", "tcp://h:1", "tls://h:1")


def test_every_kind_is_named_and_can_be_started() -> None:
    assert {kind_of(master) for master in EXAMPLES} == set(KINDS)
    assert {kind.name for kind in KINDS} == STARTERS.keys() | {"running"}
    page = (REPOSITORY / "docs/how_to/operations.md").read_text()
    missing = [form for kind in KINDS for form in kind.forms[-1:] if re.split(r"[\[H]", form)[0] not in page]
    assert not missing


def test_another_form_is_refused_with_all_forms() -> None:
    for master in ("local[0]", "local[1]x", "cuda2", "spark://h:1"):
        with pytest.raises(ConfigError, match=re.escape(f"--master {master}: expected {FORMS}")):
            kind_of(master)


@pytest.mark.parametrize(
    ("master", "is_small", "settings", "expected"),
    [
        ("local", True, {}, "local"),
        ("local", False, {}, "local[*]"),
        ("local", True, {"worker_memory": "1GiB"}, "local[*]"),
        ("local", True, {"py_files": ["own.py"]}, "local[*]"),
        ("local[3]", True, {}, "local[3]"),
    ],
)
def test_small_work_that_needs_no_processes_is_done_here(master, is_small, settings, expected):
    assert place_of(master, ClusterConfig(**settings), is_small=is_small) == expected
