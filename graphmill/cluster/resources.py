"""Memory and cores that a kind of cluster gives to its workers, and the least memory that they need."""

from collections.abc import Iterator, Sequence

from distributed import system

from graphmill.cluster.container import MASTER_MIB, memory_mib, mib
from graphmill.cluster.local import num_workers_of, place_of
from graphmill.config.masters import kind_of
from graphmill.config.sections.cluster import ClusterConfig
from graphmill.config.values import bytes_of
from graphmill.display.readable import number
from graphmill.errors import ConfigError

_LEAST_MIB = 256  # an idle worker takes 170; Dask gives it no task beyond 80 %
_OF_STAGE_MIB = {"train": 768, "evaluate": 768}  # with PyTorch an idle one takes 580


def memory_of(master: str, settings: ClusterConfig) -> int | None:
    """Return the memory of a worker in bytes; None where it has no limit, or others decide."""
    kind = kind_of(master)
    if kind.name in ("running", "cuda"):
        return None
    if kind.name == "yarn":
        return memory_mib(settings)[0] << 20
    if settings.worker_memory != "auto":
        return bytes_of(settings.worker_memory) or None
    return int(system.MEMORY_LIMIT) // num_workers_of(master) if kind.name == "local" else None


def check_memory(
    master: str | None, settings: ClusterConfig, stages: Sequence[str] = (), *, is_small: bool = False
) -> None:
    """Refuse workers that have less memory than they need to run `stages`; see `connecting.connect`."""
    master = place_of(master or settings.master, settings, is_small=is_small)
    num_bytes = memory_of(master, settings)
    name = max(stages, key=lambda name: _OF_STAGE_MIB.get(name, _LEAST_MIB), default="")
    least = _OF_STAGE_MIB.get(name, _LEAST_MIB)
    if num_bytes is None or num_bytes >= least << 20:
        return
    needs = f"at least {least}MiB{name and f' for {name}'}, found {num_bytes >> 20}MiB"
    if settings.worker_memory == "auto":
        raise ConfigError(
            f"--master {master}: expected {needs} for each worker, an equal share; start fewer workers"
        )
    raise ConfigError(f"cluster.worker_memory: expected {needs}; an idle worker takes most of that")


def asked_of_yarn(master: str | None, settings: ClusterConfig) -> Iterator[tuple[str, str]]:
    """Yield what a run asks YARN for, label and text; nothing for other kinds of cluster."""
    if kind_of(master or settings.master).name != "yarn":
        return
    worker, container = memory_mib(settings)
    gpus = f", {settings.worker_gpus} GPUs" if settings.worker_gpus else ""
    yield "YARN, queue", settings.queue or "YARN's default"
    yield (
        "YARN, containers",
        f"{number(settings.num_workers)} of {number(container)} MiB, cores: {settings.worker_cores}{gpus}",
    )
    yield "YARN, memory of a worker", f"{number(worker)} MiB"
    masters = [("application master", MASTER_MIB)]
    if settings.deploy == "cluster":
        masters += [
            ("driver", mib("driver_memory", settings.driver_memory)),
            ("its application master", MASTER_MIB),
        ]
    yield from ((f"YARN, {name}", f"{number(size)} MiB, cores: 1") for name, size in masters)
