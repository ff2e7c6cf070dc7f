"""GraphStorm and DGL from PyPI, in a virtual environment of their own beside the repository's.

torch, numpy, pandas and pyarrow are taken from the project's environment, so that nothing big is installed
twice. All packages are wheels, and none brings dependencies of its own.
"""

import fcntl
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from tests import REPOSITORY
from tests.interop.pbg import NotInstallableError

ENVIRONMENT = REPOSITORY / ".venv-graphstorm"
REQUIREMENTS = (
    "graphstorm==0.5.1",
    "dgl==1.1.3",  # later ones load a library that is compiled for one torch
    *(f"autogluon.{part}==1.4.0" for part in ("common", "core", "features", "tabular")),
    *("transformers==4.48.0", "tokenizers==0.21.4", "huggingface-hub==0.36.0", "torchdata==0.9.0"),
    *("boto3", "einops", "einx", "littleutils", "loguru", "ogb==1.3.6", "omegaconf", "outdated", "regex"),
    *("six", "tqdm"),
)
TIMEOUT_S = 300


def install() -> Path:
    """The environment's python; made once, and again when this Python or the requirements change.

    Raises:
        NotInstallableError: GraphStorm cannot be installed or imported here.
    """
    with ENVIRONMENT.with_name(f"{ENVIRONMENT.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes side by side: one installs, the others wait
        return _install()


def _install() -> Path:
    python = ENVIRONMENT / "bin" / "python"
    marker = ENVIRONMENT / "installed.json"
    wanted = {"python": sys.version, "site": sysconfig.get_path("purelib"), "requirements": REQUIREMENTS}
    if marker.exists() and json.loads(marker.read_text()) == json.loads(json.dumps(wanted)):
        return python
    run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)])
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*pip, "--no-deps", "--only-binary", ":all:", *REQUIREMENTS])
    site = run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip()
    Path(site, "project.pth").write_text(wanted["site"])
    run([str(python), "-c", "import graphstorm.gconstruct.remap_result"])
    marker.write_text(json.dumps(wanted))
    return python


def run(command: list[Any]) -> str:
    """Run a command, and return its output.

    Raises:
        NotInstallableError: it failed, or took too long.
    """
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1", "DGLBACKEND": "pytorch"}
    texts = [str(each) for each in command]
    try:
        done = subprocess.run(
            texts, capture_output=True, text=True, timeout=TIMEOUT_S, check=True, env=environment
        )
    except subprocess.CalledProcessError as error:
        last = error.stderr.strip()[-2000:]
        raise NotInstallableError(f"{' '.join(texts[1:5])} failed: {last}") from error
    except subprocess.TimeoutExpired as error:
        raise NotInstallableError(f"{' '.join(texts[1:5])} took longer than {TIMEOUT_S} s") from error
    return done.stdout
