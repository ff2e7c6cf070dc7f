"""Compiled code is loaded only if nobody else can have changed it."""

import ctypes
import os
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from graphmill.machine import native
from graphmill.machine.variants import command, installed_path, variants_here
from tests.processes import executable

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
STRANGER = 12345


class Machine:
    """A user's cache folder, a source, and what a stranger would have it load, which then writes `loaded`."""

    def __init__(self, root: Path, evil: Path) -> None:
        self.root, self.cache, self.evil = root, root / "cache" / "graphmill", evil
        self.loaded = evil.with_name("loaded")
        self.loaded.unlink(missing_ok=True)
        self.origin = ""
        self.source = root / "source" / "answer.cpp"
        self.source.parent.mkdir()
        self.source.write_text('extern "C" int graphmill_answer() { return 42; }\n')

    def answer(self) -> int:
        """Load it as a process of the user does: from a copy, since a library is loaded once a process."""
        functions = {"answer": (ctypes.c_int, [])}
        library = native.loader(self.source, functions, name="answer", instead="nothing")()
        self.origin = library.origin
        return int(library.graphmill_answer())

    def plant(self) -> Path:
        """Put the stranger's code in the place of ours, under the name that its checksum gives it."""
        self.answer()
        (ours,) = self.cache.glob("*.so")
        ours.unlink()
        planted = self.cache / native.name_of(ours.name.rpartition("-")[0], self.evil)
        shutil.copy2(self.evil, planted)
        return planted


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("evil") / "evil.so"
    source = made.with_suffix(".cpp")
    source.write_text(
        "#include <cstdio>\n"
        "__attribute__((constructor)) static void load() "
        f'{{ fclose(fopen("{made.with_name("loaded")}", "w")); }}\n'
        'extern "C" int graphmill_answer() { return 666; }\n'
    )
    subprocess.run(["g++", "-O0", "-shared", "-fPIC", str(source), "-o", str(made)], check=True)
    made.chmod(0o700)
    return made


@pytest.fixture
def machine(tmp_path: Path, evil: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return Machine(tmp_path, evil)


def test_the_attack_would_work_were_it_the_user_s_own(machine: Machine) -> None:
    machine.plant()
    assert machine.answer() == 666
    assert machine.loaded.exists()


def of_a_stranger(planted: Path) -> None:
    if os.geteuid():
        pytest.skip("needs root, to give a file away")
    os.chown(planted, STRANGER, -1)


def a_link(planted: Path) -> None:
    planted.rename(planted.parents[2] / "elsewhere")
    planted.symlink_to(planted.parents[2] / "elsewhere")


CHANGES: dict[str, Callable[[Path], Any]] = {
    "of a stranger": of_a_stranger,
    "writable by the group": lambda planted: planted.chmod(0o720),
    "writable by all": lambda planted: planted.chmod(0o702),
    "a link": a_link,
    "another checksum": lambda planted: planted.rename(
        planted.with_name(planted.name.rpartition("-")[0] + f"-{'0' * 24}.so")
    ),
    "empty": lambda planted: planted.write_bytes(b""),
    "cut short": lambda planted: planted.write_bytes(planted.read_bytes()[:-1]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_may_be_another_s_is_compiled_anew(machine, change, caplog):
    CHANGES[change](machine.plant())
    with caplog.at_level("WARNING", "graphmill"):
        assert machine.answer() == 42
    assert "compiled anew" in caplog.text
    assert not machine.loaded.exists()
    (made,) = machine.cache.iterdir()
    assert stat.S_IMODE(made.stat().st_mode) == 0o700


@pytest.mark.parametrize("change", [of_a_stranger, a_link, lambda folder: folder.chmod(0o777)])
def test_a_folder_that_may_be_another_s_is_not_looked_into(machine, change):
    planted = machine.plant()
    change(machine.cache)
    assert machine.answer() == 42
    assert not machine.loaded.exists()
    assert planted.exists(), "nothing is deleted there"
    assert not list((machine.root / "tmp").iterdir()), "loaded, and gone"


def test_it_is_compiled_once_and_synced(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bool] = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(stat.S_ISDIR(os.fstat(fd).st_mode)), sync(fd)))
    old = os.umask(0o002)
    try:
        assert machine.answer() == 42
    finally:
        os.umask(old)
    assert synced == [False], "before it gets its name, which has its checksum"
    (made,) = machine.cache.iterdir()
    before = made.stat()
    assert machine.answer() == 42
    after = made.stat()  # its time of access changes
    assert (after.st_ino, after.st_ctime_ns) == (before.st_ino, before.st_ctime_ns)
    assert not list((machine.root / "tmp").iterdir())


def test_what_a_killed_compiler_left_goes_with_time(machine: Machine) -> None:
    machine.cache.mkdir(mode=0o700, parents=True)
    for name, age_s in (("old", 3600), ("new", 0)):
        (machine.cache / f".compile-{name}").mkdir()
        os.utime(machine.cache / f".compile-{name}", (time.time() - age_s,) * 2)
    machine.answer()
    assert [path.name for path in machine.cache.iterdir() if path.is_dir()] == [".compile-new"]


def test_the_installation_s_code_needs_no_compiler(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.source.write_text('extern "C" int graphmill_answer() { return 43; }\n')
    best = variants_here()[0]
    compiled = [*command("g++", best), str(machine.source), "-o", str(installed_path(machine.source, best))]
    subprocess.run(compiled, check=True)
    monkeypatch.setenv("PATH", str(machine.root))
    assert (machine.answer(), machine.origin) == (43, f"{best}, of the installation")
    assert not machine.cache.exists()


def test_an_installation_s_code_that_does_not_load_is_compiled_here(machine, caplog):
    installed_path(machine.source, variants_here()[0]).write_bytes(b"for another C library")
    assert machine.answer() == 42
    assert machine.origin == f"{variants_here()[0]}, compiled on this machine"
    assert "does not load" in caplog.text


@pytest.mark.parametrize("cache", ["a file", "no home"])
def test_compiled_where_nobody_has_a_home(machine, cache, monkeypatch):
    (machine.root / "a file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", "" if cache == "no home" else str(machine.root / "a file"))
    no_home = Mock(side_effect=RuntimeError("Could not determine home directory."))
    monkeypatch.setattr(Path, "expanduser", no_home)  # of a user without a name, where HOME is not set
    assert machine.answer() == 42
    assert not list((machine.root / "tmp").iterdir())  # it is loaded by then


def test_a_compiler_that_fails_is_told_of(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    machine.source.write_text("no C++\n")
    assert native.loader(machine.source, {}, name="answer", instead="nothing")() is None
    assert "answer: no compiled code (" in caplog.text
    assert "error: " in caplog.text, "not the compiler's last line, which points at a column"
    assert not list(machine.cache.iterdir())  # nothing half done is left


def test_an_old_compiler_compiles_for_this_processor_alone(machine, monkeypatch):
    refuses = 'case "$*" in *x86-64-v*) exit 1;; esac\nexec g++ "$@"'
    compiler = executable(machine.root / "old-g++", refuses)
    monkeypatch.setenv("CXX", str(compiler))
    assert (machine.answer(), machine.origin) == (42, "native, compiled on this machine")


def test_pytorch_s_limit_holds_here_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    ours = variants_here()
    assert ours[-1] == "native"
    assert any(kind in native._processor() for kind in (b"flags", b"Features"))  # which it is compiled for
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    assert variants_here() == [each for each in ours if "v4" not in each]
