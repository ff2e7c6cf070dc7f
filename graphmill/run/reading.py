"""Reading of run.json, which any version may have written."""

from collections.abc import Mapping
from typing import Any


def mapping(content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The object under `key`; without one, an empty object."""
    value = content.get(key)
    return value if isinstance(value, dict) else {}


def records(content: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """The list of objects under `key`; without one, an empty list."""
    value = content.get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def total(counts: Any) -> int:
    """The sum of all numbers in nested objects and lists."""
    if isinstance(counts, dict):
        return sum(map(total, counts.values()))
    if isinstance(counts, list):
        return sum(map(total, counts))
    return counts if isinstance(counts, int) else 0


def flattened(content: Any, path: str = "") -> dict[str, Any]:
    """Settings by path: `relations[0].operator`."""
    if isinstance(content, dict) and content:
        parts = [flattened(value, f"{path}.{key}".lstrip(".")) for key, value in content.items()]
    elif isinstance(content, list) and content and isinstance(content[0], dict):
        parts = [flattened(value, f"{path}[{place}]") for place, value in enumerate(content)]
    else:
        return {path: content}
    return {key: value for part in parts for key, value in part.items()}
