"""The Dockerfile, built on a Debian of debootstrap by buildah, and its image at work; `make test-image`.

No image is pulled. debootstrap makes the base, with this machine's certificates and settings of pip, as an
organisation's own base image has them. buildah runs the steps in a chroot, so this needs root, but no daemon.

IMAGE_PIP_ARGS   arguments of pip at the build, such as an index of PyTorch for CPUs: the image then holds all
                 dependencies. Without it the image holds GraphMill alone, and the dependencies of this
                 environment are mounted, which saves gigabytes.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from tests import REPOSITORY
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.image,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for debootstrap and chroot"),
    *(
        pytest.mark.skipif(shutil.which(tool) is None, reason=f"needs {tool}, a package of Debian and Ubuntu")
        for tool in ("debootstrap", "buildah")
    ),
]

SUITE, PYTHON = "bookworm", (3, 11)  # its version of Python
OF_THE_MACHINE = ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")
PIP_ARGS = os.environ.get("IMAGE_PIP_ARGS")
USER_ID = 10001


class Image:
    """The built image, in a storage of its own, and a container of it."""

    def __init__(self, folder: Path) -> None:
        places = ("--root", f"{folder}/storage", "--runroot", f"{folder}/run")
        self.tool = ["buildah", *places, "--storage-driver", "vfs"]
        self.container = ""

    def buildah(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*self.tool, *words], cwd=REPOSITORY, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0 or not check, done.stdout[-3000:] + done.stderr[-3000:]
        return done

    def command(self, *words: str, folder: Path | None = None, **variables: str) -> list[str]:
        """Words of buildah that run `words` in the container: as its user, through its entry point."""
        mounts = [] if folder is None else ["--volume", f"{folder}:/work:rw"]
        if PIP_ARGS is None:
            mounts += ["--volume", f"{Path(pytest.__file__).parents[1]}:/dependencies:ro"]
            variables["PYTHONPATH"] = "/dependencies"
        options = [*mounts, *(word for each in variables.items() for word in ("--env", "=".join(each)))]
        return ["run", "--isolation", "chroot", *options, self.container, "graphmill-entrypoint", *words]

    def run(self, *words, folder=None, check=True, **variables):
        return self.buildah(*self.command(*words, folder=folder, **variables), check=check)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    if PIP_ARGS is None and sys.version_info[:2] != PYTHON:
        pytest.skip(
            f"{SUITE} has another Python than this environment; set IMAGE_PIP_ARGS to install all there"
        )
    folder = tmp_path_factory.mktemp("image")
    built = Image(folder)
    try:
        base = folder / "base"
        packages = "--include=python3,python3-venv,ca-certificates"
        subprocess.run(["debootstrap", "--variant=minbase", packages, SUITE, base], check=True)
        for file in filter(os.path.exists, OF_THE_MACHINE):
            shutil.copy(file, f"{base}{file}")
        empty = built.buildah("from", "scratch").stdout.strip()
        built.buildah("add", empty, str(base), "/")
        built.buildah("commit", "--rm", empty, "localhost/base")
        arguments = ("BASE=localhost/base", f"PIP_ARGS={'--no-deps' if PIP_ARGS is None else PIP_ARGS}")
        options = [word for each in arguments for word in ("--build-arg", each)]
        built.buildah("bud", "--isolation", "chroot", *options, "--tag", "localhost/graphmill", ".")
        built.container = built.buildah("from", "localhost/graphmill").stdout.strip()
        yield built
    finally:
        built.buildah("rm", "--all")
        built.buildah("rmi", "--all", "--force")
        shutil.rmtree(folder, ignore_errors=True)


def test_a_run_is_unprivileged_with_compiled_code_and_no_compiler(image: Image, tmp_path: Path) -> None:
    for split, num_edges in (("train", 600), ("valid", 9), ("test", 9)):
        rows = (f"n{at % 60}\tr{at % 3}\tn{at * 7 % 59}\n" for at in range(num_edges))
        (tmp_path / f"{split}.txt").write_text("".join(rows))
    os.chown(tmp_path, USER_ID, USER_ID)
    sets = [word for each in ("input=/work", "dimension=8", "num_epochs=2") for word in ("--set", each)]
    words = ["--conf", "/opt/graphmill/conf/triples.yaml", "--master", "local[1]", "--output", "out", *sets]
    image.run("pipeline.py", *words, folder=tmp_path)

    assert pq.read_table(tmp_path / "out" / "embeddings" / "entity").num_rows == 60
    assert {path.stat().st_uid for path in (tmp_path / "out").rglob("*")} == {USER_ID}
    reasons = json.loads((tmp_path / "out" / "run.json").read_text())["stages"]["train"]["plan"]["reasons"]
    assert "of the installation" in str(reasons)
    assert image.run("bash", "-c", "command -v g++ gcc cc c++").returncode == 1


def test_the_compose_file_s_scheduler_is_healthy(image: Image, tmp_path: Path) -> None:
    """Its commands, at an address of this machine."""
    service = yaml.safe_load((REPOSITORY / "docker" / "compose.yaml").read_text())["services"]["scheduler"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    here = {"scheduler": "127.0.0.1", "8786": str(port), "127.0.0.1:8787": "127.0.0.1:0"}
    program, kind, *rest = service["command"]
    start = ("python", "-m", program) if PIP_ARGS is None else (program,)  # dask's own script comes with dask
    command = image.command(*start, kind, *(here.get(word, word) for word in rest))
    log = tmp_path / "log"
    with log.open("w") as stream:
        scheduler = subprocess.Popen(
            [*image.tool, *command], stdout=stream, stderr=stream, start_new_session=True
        )
    try:
        wait_until(lambda: "Scheduler at:" in log.read_text() or scheduler.poll() is not None)
        assert scheduler.poll() is None, log.read_text()
        _, *check = service["healthcheck"]["test"]
        image.run(*(word.replace("scheduler:8786", f"127.0.0.1:{port}") for word in check))
    finally:
        if scheduler.poll() is None:
            os.killpg(scheduler.pid, signal.SIGTERM)
        scheduler.wait()
