"""Folders that many tests need, made once for all processes of pytest-xdist; tests change copies of them."""

import fcntl
import os
import shutil
import sys
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from graphmill.machine.variants import command, variants_here
from tests import REPOSITORY
from tests.forked import Forks
from tests.processes import completed, executable

Once = Callable[[str, Callable[[Path], object]], Path]

NUM_ENTITIES = 300
NUM_RELATIONS = 5
SMALL = (
    "dimension=16",
    "num_epochs=3",
    "batch_size=500",
    "num_batch_negs=50",
    "num_uniform_negs=50",
    "entities.entity.num_partitions=2",
    "workers=1",  # of several threads none knows which comes first
)


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """`once(name, make)`: a folder of that name, which `make(folder)` has filled in one process."""
    base = tmp_path_factory.getbasetemp()
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def folder(name: str, make: Callable[[Path], object]) -> Path:
        made = root / f"once-{name}"
        with made.with_suffix(".lock").open("a+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not lock.tell():  # the lock's file has a byte when the folder is whole
                shutil.rmtree(made, ignore_errors=True)
                made.mkdir()
                make(made)
                lock.write(".")
        return made

    return folder


@pytest.fixture(scope="session")
def triples(once: Once) -> Path:
    """A folder of triples in which every relation shifts the entities around a ring."""

    def make(folder: Path) -> None:
        rng = np.random.default_rng(7)
        for split, num_edges in (("train", 6000), ("valid", 200), ("test", 200)):
            heads = rng.integers(NUM_ENTITIES, size=num_edges)
            relations = rng.integers(NUM_RELATIONS, size=num_edges)
            tails = (heads + 1 + relations * 7 + rng.integers(3, size=num_edges)) % NUM_ENTITIES
            rows = zip(heads, relations, tails, strict=True)
            (folder / f"{split}.txt").write_text("".join(f"n{h:03}\tr{r}\tn{t:03}\n" for h, r, t in rows))

    return once("triples", make)


def of_triples(input_uri: object, output_uri: object, *settings: str) -> list[str]:
    """Options of the pipeline for a folder of triples."""
    overrides = (f"input={input_uri}", f"output={output_uri}", *SMALL, *settings)
    return ["--conf", str(REPOSITORY / "conf/triples.yaml"), *(f"--set={each}" for each in overrides)]


@pytest.fixture(scope="session")
def finished_run(once: Once, triples: Path, forked: Forks) -> Path:
    """The output of the pipeline for the triples: two partitions, evaluated, calibrated, published."""

    def make(folder: Path) -> None:
        forked("graphmill", "pipeline", *of_triples(triples, folder), has_report=True)

    return once("run", make)


@pytest.fixture(scope="session")
def wheel(once: Once) -> Path:
    """The wheel, with its compiled code; the variants that no test loads here are compiled in haste."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d"]

    def make(to: Path) -> None:
        options = " ".join(command("", variants_here()[0])[1:])
        text = f'case "$*" in "{options} "*) exec g++ "$@" ;; *) exec g++ "$@" -O0 ;; esac'
        in_haste = {"CXX": str(executable(to / "compiler", text))} if shutil.which("g++") else {}
        completed(*build, to, cwd=REPOSITORY, env=os.environ | in_haste)

    folder = once("wheel", make)
    (found,) = folder.glob("*.whl")
    return found


def environment(home: Path, *installs: Sequence[object], sites: Sequence[str] = ()) -> Path:
    """The site-packages of a virtual environment that borrows this one's packages, and those of `sites`.

    `installs` are arguments of pip, for one call after another.
    """
    venv.create(home, clear=True, symlinks=True)
    pip = (sys.executable, "-m", "pip", "--python", home, "--disable-pip-version-check")
    for each in installs:
        completed(*pip, "install", "--quiet", "--no-compile", *each)
    site = next(home.glob("lib/python*/site-packages"))
    # What a .pth names is on the path, but its own .pth files, such as that of this checkout, are not read.
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    (site / "borrowed.pth").write_text("\n".join([*borrowed, *sites]))
    return site


def copy_of(folder: Path, target: Path) -> Path:
    """A copy that a test may change; its files have the times of change of the others."""
    shutil.copytree(folder, target, symlinks=True)
    return target
