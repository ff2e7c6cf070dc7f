"""What YARN itself says of its applications, and the processes of its containers."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.hadoop.cluster import MiniHdfs

WAIT_S = 600.0

FINAL_STATES = {"FINISHED", "FAILED", "KILLED"}


@dataclass(frozen=True)
class Application:
    """One line of the resource manager's list."""

    id: str
    name: str
    queue: str
    state: str
    final_status: str


def applications(cluster: MiniHdfs) -> list[Application]:
    """All applications that the resource manager knows."""
    lines = [line.split() for line in cluster.tell("applications")]
    return [Application(*words) for words in lines if len(words) == 5 and words[0].startswith("application_")]


def named(cluster: MiniHdfs, name: str) -> list[Application]:
    """The applications of one name."""
    return [each for each in applications(cluster) if each.name == name]


def is_over(cluster: MiniHdfs, name: str) -> bool:
    """Whether there were applications of that name, and none is left."""
    found = named(cluster, name)
    return bool(found) and all(each.state in FINAL_STATES for each in found)


def containers(name: str) -> dict[str, list[int]]:
    """Process ids of each running container whose workers belong to the application `name`."""
    found: dict[str, list[int]] = {}
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                command = process.joinpath("cmdline").read_bytes()
                environment = process.joinpath("environ").read_bytes()
            except OSError:  # it has ended meanwhile
                continue
            variables = dict(each.partition(b"=")[::2] for each in environment.split(b"\0"))
            container = variables.get(b"CONTAINER_ID", b"").decode()
            if container and (b"-" + container.encode() in command) and f"{name}-".encode() in command:
                found.setdefault(container, []).append(int(process.name))
    return found


def processes(container: str) -> list[int]:
    """Process ids of everything that runs in a container, those first that started the others."""
    marker = f"CONTAINER_ID={container}\0".encode()
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and marker in process.joinpath("environ").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue
    return sorted(found)


def environment_of(cluster: MiniHdfs, **variables: str) -> dict[str, str]:
    """This process's environment, with `cluster` as Hadoop."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GRAPHMILL_")}
    return {**kept, "HADOOP_CONF_DIR": str(cluster.conf_dir), **variables}
