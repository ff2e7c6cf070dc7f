"""`make demo`: the whole pipeline on the Debian package graph, then the neighbours of well-known packages."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

REPOSITORY = Path(__file__).parents[1]
WELL_KNOWN = ("bash", "python3", "firefox-esr", "postgresql", "nginx", "gnome-shell", "gcc", "git", "vlc")
NUM_NEIGHBOURS = 5


def run_pipeline(output: Path) -> None:
    dask_submit = Path(sys.executable).with_name("dask-submit")
    command = [dask_submit, "pipeline.py", "--conf", "conf/demo.yaml", "--set", f"output={output}"]
    done = subprocess.run(command, cwd=REPOSITORY, check=False)
    if done.returncode:
        sys.exit(done.returncode)


def unit_vectors(folder: Path) -> tuple[list[str], NDArray[np.float32]]:
    """Raw ids [N] and embeddings [N, D], float32, scaled to length 1."""
    table = pq.read_table(folder, columns=["id", "embedding"])
    vectors = np.stack([chunk.values.to_numpy() for chunk in [table["embedding"].combine_chunks()]])
    vectors_ND = vectors.reshape(len(table), -1)
    return table["id"].to_pylist(), vectors_ND / np.linalg.norm(vectors_ND, axis=1, keepdims=True)


def neighbours(ids: list[str], vectors_ND: NDArray[np.float32], name: str) -> list[str]:
    """The raw ids whose embeddings have the largest cosine with that of `name`."""
    nearest = np.argsort(-vectors_ND @ vectors_ND[ids.index(name)])[: NUM_NEIGHBOURS + 1]
    return [ids[row] for row in nearest if ids[row] != name][:NUM_NEIGHBOURS]


def main() -> None:
    start = time.monotonic()
    output = Path(sys.argv[1]).resolve()
    run_pipeline(output)
    packages = output / "embeddings" / "package"
    ids, vectors_ND = unit_vectors(packages)
    table = Table("package", "nearest neighbours", title="Which packages lie close to")
    for name in (name for name in WELL_KNOWN if name in ids):
        table.add_row(name, ", ".join(neighbours(ids, vectors_ND, name)))
    console = Console()
    console.print(table)
    seconds = {
        name: stage["seconds"]
        for name, stage in json.loads((output / "run.json").read_text())["stages"].items()
    }
    told = ", ".join(f"{name} {value:.0f} s" for name, value in seconds.items())
    console.print(f"{time.monotonic() - start:.0f} s in all ({told})")
    console.print(f"embeddings of {len(ids)} packages: {packages}", soft_wrap=True)


if __name__ == "__main__":
    main()
