"""The smallest configuration: one type, one relation, one table."""

import json
from pathlib import Path
from typing import Any

GRAPH: dict[str, Any] = {
    "dimension": 2,
    "entities": {"a": {"num_partitions": 1}},
    "relations": [{"name": "r", "lhs": "a", "rhs": "a"}],
}


def etl_of(*paths: Any) -> dict[str, Any]:
    """The section `etl` for tables of two columns."""
    return {"tables": [{"path": path, "lhs": 0, "rhs": 1, "relation": "r"} for path in paths]}


def write_conf(folder: Path, table: str = "t.csv", **settings: Any) -> None:
    """Write a configuration as `c.yaml`, from the folder of the command to `o`."""
    raw = {**GRAPH, "input": ".", "output": "o", "etl": etl_of(table), **settings}
    (folder / "c.yaml").write_text(json.dumps(raw))
