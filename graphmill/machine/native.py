"""GraphMill's C++ as shared objects: built into the wheel, or compiled once per source and processor.

{source}.{variant}.so                                      beside the source, where the wheel holds them
~/.cache/graphmill/{name}-{fingerprint}-{checksum}.so      compiled here; or under $XDG_CACHE_HOME

Both are the variant of graphmill/machine/variants.py that fits the processor best, made by the same options.

A process loads what was compiled here only if nobody else can have changed it: file and folder belong to
this user, only this user can write to them, and the checksum matches. Without such a folder every process
compiles.
"""

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy.typing as npt

from graphmill.machine.variants import command, installed_path, variants_here
from graphmill.storage.atomic import replace_file
from graphmill.storage.run_folder import make_private

TIME_LIMIT_S = 300
KERNELS = Path(__file__).parent.with_name("kernels")  # the sources of steps and rankings, with their headers
_WORK = ".compile-"
_WRITABLE_BY_OTHERS = 0o022

log = logging.getLogger("graphmill")


class Library(ctypes.CDLL):
    """A loaded shared object."""

    origin = ""  # its variant, and where it was compiled; for the log


def loader(
    source_path: Path, functions: Mapping[str, tuple[Any, Sequence[Any]]], *, name: str, instead: str
) -> Callable[..., Library | None]:
    """Return a function that loads the shared object of a source, once a process.

    It returns None, and the log says why, if there is none and none can be compiled. With `double=True`, for
    tests, numbers have 64 bits, and the code is compiled here.

    Args:
        source_path: the file to compile; all files beside it count as included.
        functions: ctypes types of result and arguments, by function name without its prefix `graphmill_`.
        name: Owner of the source, for the log and the name of the file.
        instead: Consequence for the log if there is no shared object.
    """

    @cache
    def library(*, double: bool = False) -> Library | None:
        flags = ["-DDOUBLE"] if double else []
        loaded = None if double else _installed(source_path, name)
        loaded = loaded or _made_here(source_path, name, instead, flags)
        if loaded is None:
            return None
        log.debug("%s: compiled code for %s", name, loaded.origin)
        for function_name, (result, arguments) in functions.items():
            function = getattr(loaded, f"graphmill_{function_name}")
            function.restype, function.argtypes = result, arguments
        return loaded

    return library


def address(values: npt.NDArray[Any]) -> int:
    """Return the memory address of a contiguous array's values."""
    if not values.flags.c_contiguous:
        raise ValueError("compiled loops expect the values of an array one after the other")
    return values.ctypes.data


def _installed(source_path: Path, name: str) -> Library | None:
    """Load the best variant that the installation holds, if any."""
    for variant in variants_here():
        path = installed_path(source_path, variant)
        if path.exists():
            try:
                return _loaded(path, f"{variant}, of the installation")
            except OSError as error:  # built for a newer C library
                log.warning("%s: the installation's compiled code does not load: %s", name, error)
                return None
    return None


def _made_here(source_path: Path, name: str, instead: str, flags: Sequence[str]) -> Library | None:
    """Load the best variant that the compiler of this machine makes; None and a log line without any."""
    compiler = shutil.which(os.environ.get("CXX") or "g++") or shutil.which("c++")
    if compiler is None:
        log.info("%s: no C++ compiler (g++) on this machine: %s, which takes longer", name, instead)
        return None
    reason = ""
    for variant in variants_here():
        try:
            with _compiled([*command(compiler, variant), *flags], source_path, name) as path:
                return _loaded(path, f"{variant}, compiled on this machine")
        except subprocess.CalledProcessError as error:  # an old compiler does not know all levels
            lines = error.stderr.decode(errors="replace").strip().splitlines() or [str(error)]
            reason = next((line for line in lines if "error" in line), lines[-1])
        except (OSError, subprocess.TimeoutExpired) as error:
            reason = str(error)
            break
    log.warning("%s: no compiled code (%s): %s", name, reason, instead)
    return None


def _loaded(path: Path, origin: str) -> Library:
    loaded = Library(str(path))
    loaded.origin = origin
    return loaded


@contextmanager
def _compiled(words: list[str], source_path: Path, name: str) -> Iterator[Path]:
    """Yield the path of what a compiler makes of a source; the file may be deleted after the block."""
    stem = f"{name}-{_fingerprint(words, source_path)}"
    try:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
        folder = root / "graphmill"
        make_private(folder, forbidden_mode=_WRITABLE_BY_OTHERS)
        path = _kept(folder, stem) or _compile([*words, str(source_path)], folder, stem)
    except (OSError, RuntimeError) as error:  # no private folder, or no home: each process compiles
        log.debug("%s: compiled code cannot be kept: %s", name, error)
        with tempfile.TemporaryDirectory(prefix="graphmill-") as own:
            yield _compile([*words, str(source_path)], Path(own), stem)
    else:
        yield path


def _kept(folder: Path, stem: str) -> Path | None:
    """Find an unchanged shared object; delete all others of that name."""
    for path in sorted(folder.glob(f"{stem}-*.so")):
        with suppress(FileNotFoundError):  # another process has just deleted it
            status = path.lstat()
            is_private = status.st_uid == os.geteuid() and not status.st_mode & _WRITABLE_BY_OTHERS
            if is_private and stat.S_ISREG(status.st_mode) and path.name == name_of(stem, path):
                return path
            log.warning("%s is not what was compiled here, and is compiled anew", path)
            path.unlink()
    return None


def name_of(stem: str, path: Path) -> str:
    """Return the file name of the shared object at `path`, with its checksum."""
    with path.open("rb") as file:
        return f"{stem}-{hashlib.file_digest(file, _digest).hexdigest()}.so"


def _compile(words: list[str], folder: Path, stem: str) -> Path:
    log.info("%s: compiling, once on this machine", stem.partition("-")[0])
    for leftover in folder.glob(f"{_WORK}*"):
        with suppress(FileNotFoundError):  # its process has just deleted it
            if time.time() - leftover.stat().st_mtime > 2 * TIME_LIMIT_S:
                shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_WORK, dir=folder) as work:
        made = Path(work, "made.so")
        subprocess.run(
            [*words, "-o", str(made)],
            check=True,
            capture_output=True,
            timeout=TIME_LIMIT_S,
            env=os.environ | {"TMPDIR": work},
        )
        made.chmod(0o700)
        path = folder / name_of(stem, made)
        replace_file(str(made), str(path))
    return path


def _digest() -> "hashlib.blake2b":
    return hashlib.blake2b(digest_size=12)


def _fingerprint(words: list[str], source_path: Path) -> str:
    """Hash everything that the machine code depends on."""
    version = subprocess.run([words[0], "--version"], check=True, capture_output=True, timeout=60).stdout
    digest = _digest()
    for path in sorted(file for file in source_path.parent.iterdir() if file.is_file()):
        digest.update(path.read_bytes())
    for part in (version, " ".join(words[1:]).encode(), platform.machine().encode(), _processor()):
        digest.update(part + b"\0")
    return digest.hexdigest()


def _processor() -> bytes:
    """Return the processor's features, which -march=native depends on."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return platform.processor().encode()
    kinds = (b"model", b"flags", b"cpu family", b"vendor_id", b"Features", b"CPU part")
    lines = {line for line in cpuinfo.read_bytes().splitlines() if line.startswith(kinds)}
    return b"\n".join(sorted(lines))
