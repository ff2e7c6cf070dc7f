"""`make demo`: the whole pipeline on the Debian package graph, then the neighbours of well-known packages."""

import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

import graphmill

REPOSITORY = Path(__file__).parents[1]
WELL_KNOWN = ("bash", "python3", "firefox-esr", "postgresql", "nginx", "gnome-shell", "gcc", "git", "vlc")
NUM_NEIGHBOURS = 5


def run_pipeline(output: Path) -> None:
    dask_submit = Path(sys.executable).with_name("dask-submit")
    command = [dask_submit, "pipeline.py", "--conf", "conf/demo.yaml", "--set", f"output={output}"]
    if code := subprocess.run(command, cwd=REPOSITORY, check=False).returncode:
        sys.exit(code)


def main() -> None:
    start = time.monotonic()
    output = Path(sys.argv[1]).resolve()
    run_pipeline(output)
    run = graphmill.open(str(output))
    table = Table("package", "nearest neighbours", title="Nearest packages")
    for name in WELL_KNOWN:
        neighbors = run.neighbors("package", name, k=NUM_NEIGHBOURS)
        table.add_row(name, ", ".join(neighbor.id for neighbor in neighbors))
    console = Console()
    console.print(table)
    stages = ", ".join(f"{name} {stage['seconds']:.0f} s" for name, stage in run.stages.items())
    console.print(f"{time.monotonic() - start:.0f} s in total ({stages})")
    count = run.num_entities["package"]
    console.print(f"embeddings of {count} packages: {output / 'embeddings' / 'package'}", soft_wrap=True)


if __name__ == "__main__":
    main()
