"""Table of cluster kinds: forms of --master."""

import re
from typing import Any

import pytest

from graphmill.cluster.connecting import STARTERS
from graphmill.cluster.local import place_of
from graphmill.config.masters import FORMS, KINDS, kind_of
from graphmill.config.sections.cluster import ClusterConfig
from graphmill.errors import ConfigError
from tests import REPOSITORY

EXAMPLES = ("local", "local[2]", "local[*]", "cuda", "yarn", "ssh://me@h1:22,h2", "tcp://h:1", "tls://h:1")


def test_every_kind_is_named_and_can_be_started() -> None:
    assert {kind_of(master) for master in EXAMPLES} == set(KINDS)
    assert {kind.name for kind in KINDS} == STARTERS.keys() | {"running"}


@pytest.mark.parametrize("master", ["local[0]", "local[x]", "local[1]x", "cuda2", "spark://h:1", "http://h"])
def test_another_form_is_refused_with_all_forms(master: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"--master {master}: expected {FORMS}")):
        kind_of(master)


@pytest.mark.parametrize(
    ("master", "is_small", "settings", "expected"),
    [
        ("local", True, {}, "local"),
        ("local", False, {}, "local[*]"),
        ("local", True, {"worker_memory": "1GiB"}, "local[*]"),
        ("local", True, {"py_files": ["own.py"]}, "local[*]"),
        ("local[3]", True, {}, "local[3]"),
        ("yarn", True, {}, "yarn"),
    ],
)
def test_small_work_that_needs_no_processes_is_done_here(
    master: str, is_small: bool, settings: dict[str, Any], expected: str
) -> None:
    assert place_of(master, ClusterConfig(**settings), is_small=is_small) == expected


def test_the_page_names_every_kind() -> None:
    page = (REPOSITORY / "docs/how_to/operations.md").read_text()
    missing = [form for kind in KINDS for form in kind.forms[-1:] if re.split(r"[\[H]", form)[0] not in page]
    assert not missing
