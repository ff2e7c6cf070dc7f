"""Parquet as Spark, Hive and MapReduce read it: with parquet-java."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.hadoop.jars import ensure_jars

MAIN_PATH = Path(__file__).with_name("ReadParquet.java")
TIME_LIMIT_S = 600.0


def read(paths: Sequence[Path], num_shares: int) -> dict[Path, list[list[str]]]:
    """The rows of each file as texts, lists as `a,b,c`, bytes in hex; read in `num_shares` shares.

    Raises: HadoopUnavailableError without jars; RuntimeError with what Java says when it fails.
    """
    command = ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]
    command += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", f"{ensure_jars()}/*"]
    command += [str(MAIN_PATH), str(num_shares), *map(str, paths)]
    java = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=TIME_LIMIT_S)
    if java.returncode:
        raise RuntimeError(f"Java ended with exit code {java.returncode}:\n{java.stderr[-4000:]}")
    found: dict[Path, list[list[str]]] = {}
    for line in java.stdout.splitlines():
        if line.startswith("FILE "):
            rows = found.setdefault(Path(line.removeprefix("FILE ")), [])
        else:
            rows.append(line.split("\t"))
    return found
