"""Hadoop's jars from Maven Central, fetched once into a cache folder.

.hadoop/
    jars-<hash of pom.xml>/*.jar
"""

import functools
import hashlib
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests import REPOSITORY
from tests.processes import completed

POM_PATH = Path(__file__).with_name("pom.xml")
CACHE_PATH = REPOSITORY / ".hadoop"
FETCH_TIMEOUT_S = 600.0
# Hadoop 3.4 needs Subject.getSubject, which Java 23 disabled; single-file launch came with Java 11.
JAVA_VERSIONS = range(11, 23)


class HadoopUnavailableError(Exception):
    """This machine cannot run Hadoop; the message is the reason to skip."""


@functools.cache
def why_not() -> str | None:
    """The reason why no Hadoop can run here, or None once its jars are in the cache."""
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            return f"expected {tool} on PATH, found none; install a JDK and Maven"
    modules = completed("java", "--list-modules").stdout
    found = re.search(r"^jdk\.compiler@(\d+)", modules, re.MULTILINE)
    if found is None or int(found[1]) not in JAVA_VERSIONS:
        wanted = f"a JDK from {JAVA_VERSIONS[0]} to {JAVA_VERSIONS[-1]}"
        return f"expected {wanted} on PATH, found one of {found[1] if found else 'no compiler'}"
    try:
        ensure_jars()
    except HadoopUnavailableError as unavailable:
        return str(unavailable)
    return None


def ensure_jars() -> Path:
    """The folder of jars, fetched first if the cache lacks it.

    The folder appears by rename, so it is whole whenever it is there, whoever else fetches.

    Raises: HadoopUnavailableError, quoting Maven, when they cannot be fetched.
    """
    jars_path = CACHE_PATH / f"jars-{hashlib.sha256(POM_PATH.read_bytes()).hexdigest()[:16]}"
    if jars_path.is_dir():
        return jars_path
    CACHE_PATH.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fetching-", dir=CACHE_PATH) as temporary:
        fetched_path = Path(temporary, "jars")
        _fetch(fetched_path)
        try:
            fetched_path.rename(jars_path)
        except OSError:
            if not jars_path.is_dir():  # otherwise another process was first, with the same jars
                raise
    return jars_path


def _fetch(jars_path: Path) -> None:
    command = ["mvn", "-B", "-q", "-f", str(POM_PATH), f"-DoutputDirectory={jars_path}"]
    # In full, so that the version is the pom's and not the newest one on the day.
    command += ["org.apache.maven.plugins:maven-dependency-plugin:copy-dependencies"]
    try:
        mvn = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S)
    except subprocess.TimeoutExpired as expired:
        raise HadoopUnavailableError(f"mvn did not fetch jars in {FETCH_TIMEOUT_S:.0f} s") from expired
    if mvn.returncode != 0:
        output = mvn.stdout + mvn.stderr
        # Maven's first error is the cause; its last lines only tell where to read about errors.
        error = re.search(r"\[ERROR\] (\S.*)", output)
        cause = error[1] if error else output[-1000:]
        raise HadoopUnavailableError(f"mvn could not fetch jars (exit code {mvn.returncode}): {cause}")
