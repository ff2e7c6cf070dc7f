"""Checks and preparation of workers: the package, its versions, environment variables."""

import gc
import importlib.metadata
import importlib.resources
import importlib.util
import logging
import os
import platform
import zipfile
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from distributed import Client, UploadFile, WorkerPlugin, system

from graphmill import storage
from graphmill.cluster.settings import ENVIRONMENT
from graphmill.config.masters import Kind
from graphmill.display import progress
from graphmill.errors import ConfigError
from graphmill.storage import run_folder
from graphmill.version import __version__

PACKAGES = ("graphmill", "etl", "train", "remap")
# Client, scheduler and workers exchange pickles of these packages.
MUST_AGREE = ("dask", "distributed")  # and graphmill, and Python
MUST_BE_THERE = ("h5py", "numpy", "pyarrow", "torch", "xxhash")

log = logging.getLogger("graphmill")


class Environment(WorkerPlugin):  # type: ignore[misc]  # distributed is untyped here
    """Prepares every worker, including those that join later."""

    name = "graphmill-environment"

    def __init__(self, variables: dict[str, str]) -> None:
        self.variables = variables

    def setup(self, worker: Any) -> None:
        """Called by Dask on each worker."""
        os.environ.update(self.variables)
        worker.metrics["working on"] = progress.worked_on  # the dashboard's page "Workers"
        # In time: the first task of a worker loads OpenMP.
        os.environ.setdefault("OMP_WAIT_POLICY", ENVIRONMENT["OMP_WAIT_POLICY"])

    def teardown(self, worker: Any) -> None:
        """Called by Dask before a worker ends, which then takes half a second less."""
        gc.freeze()


def described_workers(client: Client) -> dict[str, dict[str, Any]]:
    """Return Dask's description of each worker that is there now, by address.

    Not by client.scheduler_info(): every two seconds, Dask puts an answer without workers in its place.
    """
    workers: dict[str, dict[str, Any]] = client.sync(client.scheduler.identity, n_workers=-1)["workers"]
    return workers


def memory_of_workers(client: Client) -> int:
    """The memory of the smallest worker, in bytes; that of this machine, if workers have no limit."""
    limits = [
        worker["memory_limit"] for worker in described_workers(client).values() if worker.get("memory_limit")
    ]
    return int(min(limits, default=system.MEMORY_LIMIT))


def workers_by_host(client: Client) -> Counter[str]:
    """Count the workers that are there now, by the names of their machines."""
    return Counter(worker["host"] for worker in described_workers(client).values())


def worker_addresses(client: Client) -> set[str]:
    """Return the addresses of the workers that are there now; raises as `described_workers`."""
    return set(described_workers(client))


def prepare(client: Client, kind: Kind, py_files: Iterable[str]) -> None:
    """Upload missing packages and `py_files` to the workers, and refuse workers with other versions."""
    with run_folder.temporary() as folder:
        before = {} if kind.has_own_workers else _ask(client, kind)
        if any("graphmill" not in answer["versions"] for answer in before.values()):
            log.info("cluster: workers lack graphmill; uploading it")
            _upload(client, own_package(Path(folder)), kind)
        for file in py_files:
            path = _importable(file, Path(folder))
            try:
                _upload(client, path, kind)
            except OSError:  # the cluster is lost
                raise
            except Exception as error:  # of the user's own code
                raise ConfigError(
                    f"--py-files {file}: a worker cannot import it: {type(error).__name__}: {error}"
                ) from error
    if kind.has_own_workers:  # processes of this installation
        return
    answers = _ask(client, kind)
    for place, answer in answers.items():
        _check_versions(place, answer["versions"])
    slow = [place for place, answer in answers.items() if answer["environment"] != ENVIRONMENT]
    if slow:
        wanted = " ".join(f"{key}={value}" for key, value in ENVIRONMENT.items())
        text = "cluster: workers that are slower than they could be: %d (%s, ...); start them with %s"
        log.warning(text, len(slow), slow[0], wanted)


def _ask(client: Client, kind: Kind) -> dict[str, dict[str, Any]]:
    """Return versions and environment variables of each worker, and of a scheduler elsewhere, by address."""

    def probe() -> dict[str, Any]:  # nested, so pickled by value: workers may lack graphmill
        versions = {"python": ".".join(platform.python_version_tuple()[:2])}
        for package in ("graphmill", *MUST_AGREE, *MUST_BE_THERE):
            with suppress(importlib.metadata.PackageNotFoundError):
                if package != "graphmill" or importlib.util.find_spec(package):
                    versions[package] = importlib.metadata.version(package)
        return {
            "versions": versions,
            "environment": {key: os.environ[key] for key in ENVIRONMENT if key in os.environ},
        }

    answers: dict[str, dict[str, Any]] = client.run(probe)
    if not kind.has_own_scheduler:
        answers["the scheduler"] = client.run_on_scheduler(probe) | {"environment": ENVIRONMENT}
    return answers


def _check_versions(place: str, there: dict[str, str]) -> None:
    here = {"graphmill": __version__} | {name: importlib.metadata.version(name) for name in MUST_AGREE}
    here["python"] = ".".join(platform.python_version_tuple()[:2])
    problems = [
        f"{name} is {there.get(name, 'missing')} there and {version} here"
        for name, version in here.items()
        if there.get(name) != version
    ]
    needed = () if place == "the scheduler" else MUST_BE_THERE
    problems += [f"{name} is missing there" for name in needed if name not in there]
    if problems:
        raise ConfigError(
            f"{place}: {'; '.join(problems)}; install the same versions on all machines "
            "(docs/how_to/operations.md: the packed environment)"
        )


def _upload(client: Client, path: Path, kind: Kind) -> None:
    if kind.has_own_scheduler:
        client.register_plugin(UploadFile(str(path)), name=f"upload-{path.name}")
    else:
        client.upload_file(str(path))


def own_package(folder: Path) -> Path:
    """Write this installation to a zip in `folder`, with its version; Python can import from the zip."""
    target = folder / f"graphmill-{__version__}.zip"
    # Reproducible images have files of 1970, a time that a zip cannot hold.
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for package in PACKAGES:
            root = Path(str(importlib.resources.files(package)))
            for path in sorted(root.rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    archive.write(path, str(Path(package, path.relative_to(root))))
        metadata = f"Metadata-Version: 2.1\nName: graphmill\nVersion: {__version__}\n"
        archive.writestr(f"graphmill-{__version__}.dist-info/METADATA", metadata)
    return target


def _importable(file: str, folder: Path) -> Path:
    """Copy `file` to `folder`, under a name that Dask's workers can import."""
    suffix = Path(storage.name(file)).suffix
    if suffix not in (".py", ".zip", ".egg", ".whl"):
        raise ConfigError(f"--py-files {file}: expected a .py, .zip, .egg or .whl file")
    target = folder / storage.name(file)
    storage.copy_file(file, str(target))
    # A wheel of pure Python is a zip.
    return target.rename(target.with_suffix(".zip")) if suffix == ".whl" else target
