"""Curves for TensorBoard: `tensorboard --logdir OUTPUT/tensorboard`.

    {output}/tensorboard/events.out.tfevents.*     one per epoch, complete when it appears

Each epoch has a file of its own, because storage cannot append: TensorBoard reads the files one after another
while the run continues.

Scalars: epoch/{loss, reg, mrr, edges_per_s, swap_wait_s, peak_bytes} by epoch, and bucket/{loss, reg, mrr}
by the number of edges trained until then.
"""

import importlib.util
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graphmill import storage
from graphmill.config import Config
from graphmill.errors import ConfigError
from graphmill.storage import run_folder

_EPOCH = ("loss", "reg", "mrr", "seconds", "edges_per_s", "swap_wait_s", "peak_bytes")
_BUCKET = ("loss", "reg", "mrr", "seconds", "wait_s")


class Curves:
    """Writes the event files of a run."""

    def __init__(self, config: Config) -> None:
        """Raises ConfigError where tensorboard is not installed."""
        if importlib.util.find_spec("tensorboard") is None:
            raise ConfigError(
                "train.tensorboard: tensorboard is not installed here; pip install 'graphmill[tensorboard]', "
                "or set train.tensorboard: false"
            )
        self.uri = storage.join(config.output or config.checkpoint_path, "tensorboard")

    def write(self, epoch: Mapping[str, Any], num_edges: int) -> None:
        """Write an epoch's entry of run.json; `num_edges` were trained before the epoch."""
        from torch.utils.tensorboard import SummaryWriter  # seconds to import

        with run_folder.temporary() as folder:
            with SummaryWriter(folder) as writer:
                for bucket in epoch["buckets"]:
                    num_edges += bucket["edges"]
                    for name in (each for each in _BUCKET if each in bucket):
                        writer.add_scalar(f"bucket/{name}", bucket[name], num_edges)
                for name in (each for each in _EPOCH if each in epoch):
                    writer.add_scalar(f"epoch/{name}", epoch[name], epoch["epoch"])
            for file in Path(folder).iterdir():
                target = storage.join(self.uri, _in_order(file.name, epoch["epoch"]))
                with file.open("rb") as source, storage.atomic_output(target) as stream:
                    shutil.copyfileobj(source, stream)


def _in_order(name: str, epoch: int) -> str:
    """TensorBoard reads files in the order of their names, and the writer's end in seconds and a number."""
    events, out, kind, seconds, rest = name.split(".", 4)
    return ".".join([events, out, kind, seconds, f"{epoch:08d}", rest])
