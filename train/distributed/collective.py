"""All-reduce among the workers of a round, by torch.distributed: NCCL between GPUs, Gloo between CPUs.

The group of a round meets at a store that Dask's scheduler keeps. A group is used again while rounds have
the same members. Members listen only on the address by which Dask knows the worker. Where Dask is encrypted,
Gloo is encrypted too, with the same keys; NCCL cannot encrypt.
"""

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil  # type: ignore[import-untyped]
import torch
import torch.distributed as dist
from distributed import Security, get_client, get_worker
from torch import Tensor

from graphmill.errors import ClusterError, ConfigError
from graphmill.storage import run_folder
from train.distributed.messages import ReduceGroup
from train.distributed.scheduler_store import SchedulerStore

TIMEOUT = timedelta(minutes=5)  # an all-reduce fails after so long without a member

OPENSSL = ("libssl.so", "libssl.so.1.1")  # names under which Gloo looks for OpenSSL

_GLOO = "GLOO_DEVICE_TRANSPORT"
_NCCL_INTERFACE = "NCCL_SOCKET_IFNAME"


class Collective:
    """One worker's end of all-reduces."""

    def __init__(self, backend: str, device: torch.device) -> None:
        """Check the backend; the first `sum` joins a group.

        Raises:
            ConfigError: the backend cannot work on this worker.
        """
        check_backend(backend, device)
        if backend == "gloo" and get_worker().security.require_encryption:
            check_openssl(OPENSSL)
        self.backend = backend
        self._device = device if backend == "nccl" else torch.device("cpu")
        self._name: str | None = None
        self._store: SchedulerStore | None = None
        self._group: Any = None

    def sum(self, tensors: list[Tensor], group: ReduceGroup) -> list[Tensor]:
        """The sums of the members' tensors, equal on every member and on the tensors' device.

        Raises:
            ClusterError: a member was lost.
        """
        try:
            self._join(group)
            return [self._sum(each) for each in tensors]
        except (dist.DistError, RuntimeError, OSError) as error:
            self.close()
            raise ClusterError(
                f"training: the all-reduce of {group['size']} workers failed: {error}; run it again: it "
                "goes on from the last version. train.all_reduce: shards survives lost workers"
            ) from error

    def close(self) -> None:
        """Leave the group."""
        if self._group is not None and self.backend == "nccl":
            self._group.shutdown()
        if self._store is not None:
            self._store.forget()
        self._name = self._store = self._group = None

    def _sum(self, tensor: Tensor) -> Tensor:
        total = tensor.to(self._device, copy=True)
        self._group.allreduce([total]).wait()
        return total.to(tensor.device)

    def _join(self, group: ReduceGroup) -> None:
        if group["name"] == self._name:
            return
        self.close()
        self._store = SchedulerStore(get_client(), group["name"], TIMEOUT)
        make = _gloo if self.backend == "gloo" else _nccl
        self._group = make(self._store, group["rank"], group["size"])
        self._name = group["name"]


def _gloo(store: SchedulerStore, rank: int, size: int) -> Any:
    worker = get_worker()
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = TIMEOUT
    with _encrypted(worker.security):
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=urlsplit(worker.address).hostname)]
        return dist.ProcessGroupGloo(store, rank, size, options)


@contextmanager
def _encrypted(security: Security) -> Iterator[None]:
    """Encrypt the connections that Gloo makes in the block, if Dask is encrypted, with keys in files."""
    if not security.require_encryption:
        os.environ.pop(_GLOO, None)
        yield
        return
    keys = {
        "PKEY": security.tls_worker_key,
        "CERT": security.tls_worker_cert,
        "CA_FILE": security.tls_ca_file,
    }
    os.environ[_GLOO] = "TCP_TLS"
    with run_folder.temporary() as folder:  # readable only by this user
        for name, value in keys.items():
            path = Path(folder, name) if "\n" in value else Path(value)
            if "\n" in value:
                path.write_text(value)
            os.environ[f"{_GLOO}_TCP_TLS_{name}"] = str(path)
        yield


def _nccl(store: SchedulerStore, rank: int, size: int) -> Any:
    host = urlsplit(get_worker().address).hostname
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == host for each in addresses):
            os.environ.setdefault(_NCCL_INTERFACE, f"={name}")
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = TIMEOUT
    return dist.ProcessGroupNCCL(store, rank, size, options)


def check_backend(backend: str, device: torch.device) -> None:
    """Refuse a backend that cannot work on this worker.

    Raises:
        ConfigError: this torch is built without the backend, or it is not for this device.
    """
    is_available = dist.is_nccl_available if backend == "nccl" else dist.is_gloo_available
    if not dist.is_available() or not is_available():
        raise ConfigError(
            f"train.all_reduce: this worker's torch {torch.__version__} is built without {backend}; "
            "set train.all_reduce: shards"
        )
    if backend == "nccl" and device.type != "cuda":
        raise ConfigError(
            "train.all_reduce: nccl reduces between GPUs; set num_gpus, or train.all_reduce: gloo"
        )


def check_openssl(names: Sequence[str]) -> None:
    """Refuse a machine where Gloo cannot encrypt; Gloo itself fails only when it connects.

    Raises:
        ConfigError: none of these libraries is installed.
    """
    for name in names:
        with suppress(OSError):
            ctypes.CDLL(name)
            return
    raise ConfigError(
        f"train.all_reduce: gloo encrypts by OpenSSL's library, and finds none on this worker's machine: "
        f"{' or '.join(names)}; install libssl-dev (openssl-devel), or set train.all_reduce: shards"
    )
