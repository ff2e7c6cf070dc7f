"""All-reduce among the workers of a round: torch.distributed, by NCCL between GPUs, by Gloo between CPUs.

Each worker opens a store of its own, whose address the coordinator hands on; the group of a round meets at
the store of its first member. A group stays as it is while rounds have the same members.
"""

from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from distributed import get_worker
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, TCPStore

from graphmill.errors import ClusterError, ConfigError
from train.spread.messages import Together

TIMEOUT = timedelta(minutes=5)  # after which a member that does not come is given up


class Collective:
    """One worker's end of all-reduces."""

    def __init__(self, backend: str, device: torch.device) -> None:
        """Opens the store.

        Raises:
            ConfigError: there is no such backend here.
        """
        check_backend(backend, device)
        self.backend = backend
        self._device = device if backend == "nccl" else torch.device("cpu")
        self._host = urlsplit(get_worker().address).hostname
        self._store = TCPStore(self._host, 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
        self._name: str | None = None

    @property
    def address(self) -> list[Any]:
        """Of the store."""
        return [self._host, self._store.port]

    def sum(self, tensors: list[Tensor], together: Together) -> list[Tensor]:
        """The sums of the members' tensors, the same on each, where the tensors are.

        Raises:
            ClusterError: a member was lost.
        """
        try:
            self._join(together)
            return [self._sum(each) for each in tensors]
        except (dist.DistError, RuntimeError) as error:
            self.close()
            raise ClusterError(
                f"training: the all-reduce of {together['size']} workers failed: {error}; run it again: it "
                "goes on from the last version. train.all_reduce: files survives lost workers"
            ) from error

    def close(self) -> None:
        """Leave the group."""
        if self._name is not None:
            dist.destroy_process_group()
            self._name = None

    def _sum(self, tensor: Tensor) -> Tensor:
        total = tensor.to(self._device, copy=True)
        dist.all_reduce(total)
        return total.to(tensor.device)

    def _join(self, together: Together) -> None:
        if together["name"] == self._name:
            return
        self.close()
        host, port = together["store"]
        store = self._store
        if [host, port] != self.address:
            store = TCPStore(host, port, is_master=False, timeout=TIMEOUT)
        dist.init_process_group(
            self.backend,
            store=PrefixStore(together["name"], store),
            rank=together["rank"],
            world_size=together["size"],
            timeout=TIMEOUT,
        )
        self._name = together["name"]


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
