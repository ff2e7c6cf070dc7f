"""All-reduce among the workers of a round: torch.distributed, by NCCL between GPUs, by Gloo between CPUs.

The group of a round meets at a store that Dask's scheduler keeps. A group stays as it is while rounds have
the same members. Members listen for each other on the address alone that Dask knows the worker by; where
Dask is encrypted, so is Gloo, with the same keys. NCCL knows no encryption.
"""

import ctypes
import os
import tempfile
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
from train.spread.messages import Together
from train.spread.store import SchedulerStore

TIMEOUT = timedelta(minutes=5)  # after which a member that does not come is given up

OPENSSL = ("libssl.so", "libssl.so.1.1")  # where Gloo looks for it

_GLOO = "GLOO_DEVICE_TRANSPORT"
_NCCL_INTERFACE = "NCCL_SOCKET_IFNAME"


class Collective:
    """One worker's end of all-reduces."""

    def __init__(self, backend: str, device: torch.device) -> None:
        """Joins nothing yet.

        Raises:
            ConfigError: there is no such backend here.
        """
        check_backend(backend, device)
        if backend == "gloo" and get_worker().security.require_encryption:
            check_openssl(OPENSSL)
        self.backend = backend
        self._device = device if backend == "nccl" else torch.device("cpu")
        self._name: str | None = None
        self._store: SchedulerStore | None = None
        self._group: Any = None

    def sum(self, tensors: list[Tensor], together: Together) -> list[Tensor]:
        """The sums of the members' tensors, the same on each, where the tensors are.

        Raises:
            ClusterError: a member was lost.
        """
        try:
            self._join(together)
            return [self._sum(each) for each in tensors]
        except (dist.DistError, RuntimeError, OSError) as error:
            self.close()
            raise ClusterError(
                f"training: the all-reduce of {together['size']} workers failed: {error}; run it again: it "
                "goes on from the last version. train.all_reduce: files survives lost workers"
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

    def _join(self, together: Together) -> None:
        if together["name"] == self._name:
            return
        self.close()
        self._store = SchedulerStore(get_client(), together["name"], TIMEOUT)
        make = _gloo if self.backend == "gloo" else _nccl
        self._group = make(self._store, together["rank"], together["size"])
        self._name = together["name"]


def _gloo(store: SchedulerStore, rank: int, size: int) -> Any:
    worker = get_worker()
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = TIMEOUT
    with _encrypted(worker.security):
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=urlsplit(worker.address).hostname)]
        return dist.ProcessGroupGloo(store, rank, size, options)


@contextmanager
def _encrypted(security: Security) -> Iterator[None]:
    """Have Gloo encrypt what is made in the block, if Dask does; Gloo reads its keys from files."""
    if not security.require_encryption:
        os.environ.pop(_GLOO, None)
        yield
        return
    with tempfile.TemporaryDirectory(prefix="graphmill-keys-") as folder:  # for this user alone, for moments
        keys = {
            "PKEY": security.tls_worker_key,
            "CERT": security.tls_worker_cert,
            "CA_FILE": security.tls_ca_file,
        }
        os.environ[_GLOO] = "TCP_TLS"
        for name, value in keys.items():
            path = Path(folder, name) if "\n" in value else Path(value)
            if "\n" in value:
                path.write_text(value)
            os.environ[f"{_GLOO}_TCP_TLS_{name}"] = str(path)
        yield


def _nccl(store: SchedulerStore, rank: int, size: int) -> Any:
    host = urlsplit(get_worker().address).hostname
    names = [
        name
        for name, addresses in psutil.net_if_addrs().items()
        if any(each.address == host for each in addresses)
    ]
    if names and _NCCL_INTERFACE not in os.environ:
        os.environ[_NCCL_INTERFACE] = f"={names[0]}"
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = TIMEOUT
    return dist.ProcessGroupNCCL(store, rank, size, options)


def check_backend(backend: str, device: torch.device) -> None:
    """Refuse what cannot work here.

    Raises:
        ConfigError: this torch is built without the backend, or it is not for this device.
    """
    there = {"nccl": dist.is_nccl_available, "gloo": dist.is_gloo_available}
    if not dist.is_available() or not there[backend]():
        raise ConfigError(
            f"train.all_reduce: this worker's torch {torch.__version__} is built without {backend}; "
            "set train.all_reduce: files"
        )
    if backend == "nccl" and device.type != "cuda":
        raise ConfigError(
            "train.all_reduce: nccl reduces between GPUs; set num_gpus, or train.all_reduce: gloo"
        )


def check_openssl(names: Sequence[str]) -> None:
    """Refuse a machine where Gloo cannot encrypt, which it would only tell when it connects.

    Raises:
        ConfigError: none of these libraries is there.
    """
    for name in names:
        with suppress(OSError):
            ctypes.CDLL(name)
            return
    raise ConfigError(
        f"train.all_reduce: gloo encrypts by OpenSSL's library, and finds none on this worker's machine: "
        f"{' or '.join(names)}; install libssl-dev (openssl-devel), or set train.all_reduce: files"
    )
