"""Checks of running workers: missing packages are uploaded, other versions are refused."""

import importlib.metadata
import os
import subprocess
import sys
import time
import venv
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from graphmill import cluster
from graphmill.cluster import workers
from graphmill.config.sections.cluster import ClusterConfig
from graphmill.errors import ConfigError, StorageError

MODULE = "def answer():\n    return 42\n"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a scheduler and a worker whose Python has all packages but GraphMill."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder / "environment", symlinks=True)
    site = next((folder / "environment").glob("lib/python*/site-packages"))
    # What a .pth names is on the path, but its own .pth files, such as that of this checkout, are not read.
    (site / "borrowed.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    python = str(folder / "environment" / "bin" / "python")
    with ExitStack() as stack:

        def start(*words: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [python, "-m", "dask", *words], cwd=folder, stderr=subprocess.PIPE, text=True
            )
            stack.callback(process.communicate)
            stack.callback(process.terminate)
            return process

        scheduler = start("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
        assert scheduler.stderr is not None
        line = next(line for line in scheduler.stderr if "Scheduler at:" in line)
        address = line.split("Scheduler at:")[1].strip()
        start("worker", address, "--nthreads", "1", "--no-dashboard", "--local-directory", str(folder))
        with Client(address, timeout=300) as client:
            client.wait_for_workers(1, timeout=300)
        yield address


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
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: "1999.1" if name == "dask" else true_version(name)
    )
    with (
        pytest.raises(ConfigError, match=rf"tcp://.*: dask is {true_version('dask')} there and 1999.1 here"),
        cluster.connect(bare, ClusterConfig()),
    ):
        pass


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


@pytest.mark.usefixtures("forking_workers")
@pytest.mark.slow
def test_a_file_that_cannot_be_imported(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match=r"--py-files .*x\.txt: expected a \.py"),
        cluster.connect("local[1]", ClusterConfig(py_files=(str(tmp_path / "x.txt"),))),
    ):
        pass
    (tmp_path / "lacking.py").write_text("import there_is_no_such_module")
    with (
        pytest.raises(
            ConfigError, match=r"--py-files .*lacking\.py: a worker cannot import it: ModuleNotFound"
        ),
        cluster.connect("local[1]", ClusterConfig(py_files=(str(tmp_path / "lacking.py"),))),
    ):
        pass


@pytest.mark.parametrize("path", ["/proc/none", "file"])
def test_a_scratch_folder_that_cannot_be_one(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot make the folder") as refused:
        cluster.connect("local[1]", ClusterConfig(scratch_path=str(tmp_path / path))).__enter__()
    assert refused.value.exit_code == 2


def test_addresses_of_workers_however_late_the_answer_is_read(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every two seconds, Dask's client replaces what it knows of the cluster by what names no worker."""
    sync = client.sync

    def sync_and_stand_still(*arguments: Any, **named: Any) -> Any:
        answer = sync(*arguments, **named)
        time.sleep(3)
        return answer

    monkeypatch.setattr(client, "sync", sync_and_stand_still)
    assert len(cluster.worker_addresses(client)) == 2
