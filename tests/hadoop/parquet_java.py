"""Parquet as Spark, Hive and MapReduce read it: with parquet-java."""

from collections.abc import Sequence
from pathlib import Path

from tests.hadoop.cluster import QUICK_START
from tests.hadoop.jars import ensure_jars
from tests.processes import completed

MAIN_PATH = Path(__file__).with_name("ReadParquet.java")


def read(paths: Sequence[Path], num_shares: int) -> dict[Path, list[list[str]]]:
    """The rows of each file as texts, lists as `a,b,c`, bytes in hex; read in `num_shares` shares."""
    options = [*QUICK_START.split(), "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
    words = [*options, "-cp", f"{ensure_jars()}/*", MAIN_PATH, num_shares, *paths]
    found: dict[Path, list[list[str]]] = {}
    for line in completed("java", *words, encoding="utf-8").stdout.splitlines():
        if line.startswith("FILE "):
            rows = found.setdefault(Path(line.removeprefix("FILE ")), [])
        else:
            rows.append(line.split("\t"))
    return found
