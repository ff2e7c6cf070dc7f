"""The layers of the house, as drawn in docs/explanation/architecture.md; the suite itself."""

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import REPOSITORY
from tests.forked import Forks
from tests.processes import alive
from tests.waiting import wait_until

PACKAGES = ("graphmill", "etl", "train", "remap")
SOURCES = [path for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py")]


# An import that breaks a contract: its module, what it imports, the contract.
REFUSED = (
    ("graphmill.model.comparators", "train.run.trainer", "Nothing but the roof imports a stage"),
    ("train.model.optimizer", "train.run.trainer", "Rooms of train"),
    ("graphmill.ask.run", "graphmill.ask.entities", "No cycles"),
    ("graphmill.storage.atomic", "graphmill.formats.entity_counts", "Rooms of graphmill"),
    ("graphmill.formats.entity_counts", "graphmill.formats.entity_index", "Formats know nothing"),
    ("etl.job", "train.job", "The stages meet only in files"),
)


def lint_imports(folder: Path) -> str:
    """The report of import-linter on the packages in `folder`."""
    linter = Path(sys.executable).with_name("lint-imports")
    return subprocess.run([linter, "--no-cache"], cwd=folder, capture_output=True, text=True).stdout


@pytest.mark.slow
def test_imports_keep_to_the_layers_and_others_are_refused(tmp_path: Path) -> None:
    report = lint_imports(REPOSITORY)
    assert " 0 broken" in report, report
    for name in PACKAGES:
        shutil.copytree(REPOSITORY / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    for module, imported, _ in REFUSED:
        for name in (module, imported):
            assert tmp_path.joinpath(*name.split(".")).with_suffix(".py").exists()
        with tmp_path.joinpath(*module.split(".")).with_suffix(".py").open("a") as source:
            source.write(f"\nimport {imported}\n")
    report = lint_imports(tmp_path)
    for module, imported, contract in REFUSED:
        assert re.search(rf"^{contract}.* BROKEN", report, re.MULTILINE), report
        (told,) = re.findall(rf"^{contract}[^\n]*\n-+\n(.*?)(?=^\S[^\n]*\n-+$|\Z)", report, re.M | re.S)
        own, other = (name.rpartition(".")[2] for name in (module, imported))
        # a cycle has two
        pairs = (f"{module} -> {imported} ", f".{own} -> .{other} ", f".{other} -> .{own} ")
        assert any(pair in told for pair in pairs), told


def test_only_storage_opens_files() -> None:
    outside = [path for path in SOURCES if "storage" not in path.parts]
    openers = ("pyarrow.fs", "import fsspec", "import hdfs_native", "h5py.File(")
    found = [f"{path.name}: {word}" for path in outside for word in openers if word in path.read_text()]
    assert not found


def test_tests_patch_no_private_names() -> None:
    private = re.compile(r"""setattr\(\s*(?:[\w.]+,\s*["']_|["'][\w.]+\._)|patch\(\s*["'][\w.]+\._""")
    found = [
        f"{path.relative_to(REPOSITORY)}: {match[0]}"
        for path in (REPOSITORY / "tests").rglob("*.py")
        for match in private.finditer(path.read_text())
    ]
    assert not found


def test_no_string_names_code_of_ours() -> None:
    """Modules are imported by statements; users name plug-ins, and packages that may be missing."""
    by_users = {"graphmill/errors.py", "graphmill/model/registry.py"}
    importing = re.compile(r"\bimport_module\b|__import__")
    found = {str(path.relative_to(REPOSITORY)) for path in SOURCES if importing.search(path.read_text())}
    assert found == by_users


# The most lines of Python and C++ in each package; they only fall. A change that adds lines replaces others.
LINES = {
    "etl": 10_039,
    "train": 13_927,
    "remap": 1_735,
    "graphmill/ask": 10_328,
    "graphmill": 39_437,
    "bench": 2_996,
}


@pytest.mark.parametrize("package", LINES)
def test_a_package_does_not_grow(package: str) -> None:
    sources = [path for path in (REPOSITORY / package).rglob("*") if path.suffix in {".py", ".cpp", ".h"}]
    assert sum(len(path.read_text().splitlines()) for path in sources) <= LINES[package]


def test_a_class_name_stands_for_one_thing() -> None:
    places = [
        (name, str(path.relative_to(REPOSITORY)))
        for path in SOURCES
        for name in re.findall(r"^class ([A-Za-z]\w*)", path.read_text(), re.MULTILINE)
    ]
    names = [name for name, _ in places]
    assert not [each for each in sorted(places) if names.count(each[0]) > 1]


ORPHAN = """
import os, subprocess
from tests.forked import end_with
print(subprocess.Popen(["sleep", "600"], start_new_session=True).pid, flush=True)
pipe, written = os.pipe()
os.close(written)
end_with(pipe)
"""


def test_what_a_fork_has_started_ends_with_the_suite(forked: Forks) -> None:
    """A killed suite closes its end of a pipe."""
    orphan = forked("python", "-c", ORPHAN, code=-signal.SIGKILL)
    wait_until(lambda: not alive(int(orphan.stdout)))


def test_pytest_xdist_sees_the_groups(request: pytest.FixtureRequest) -> None:
    """A file stays in one process; with pytest 9.2, pytest-xdist 3.8 distributes tests one by one."""
    if not request.config.getoption("loadgroup", False):
        pytest.skip("all tests run in this process")
    assert request.node.nodeid.endswith(f"@{request.node.location[0]}")
