"""GraphMill's C++ as shared objects, compiled once per source, compiler and processor.

~/.cache/graphmill/{name}-{fingerprint}-{checksum}.so      or under $XDG_CACHE_HOME

A process loads a shared object only if nobody else can have changed it: file and folder belong to this user,
only this user can write to them, and the checksum matches. Without such a folder every process compiles.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy.typing as npt

from graphmill.machine.private_folders import make_private

# No -ffast-math: sums keep their order, so that the same input gives the same output.
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
TIME_LIMIT_S = 300
_WORK = ".compile-"
_WRITABLE_BY_OTHERS = 0o022

log = logging.getLogger("graphmill")


def library(
    source_path: Path,
    functions: Mapping[str, tuple[Any, Sequence[Any]]],
    *,
    name: str,
    instead: str,
    flags: Sequence[str] = FLAGS,
) -> ctypes.CDLL | None:
    """Return the shared object of a source, or None and a log line if it cannot be compiled.

    Args:
        source_path: the file to compile; all files beside it count as included.
        functions: ctypes types of result and arguments, by function name without its prefix `graphmill_`.
        name: Owner of the source, for the log and the name of the file.
        instead: Consequence for the log if there is no shared object.
        flags: Options of the compiler.
    """
    compiler = shutil.which(os.environ.get("CXX") or "g++") or shutil.which("c++")
    if compiler is None:
        log.info("%s: no C++ compiler (g++) on this machine: %s, which takes longer", name, instead)
        return None
    try:
        with _compiled(source_path, compiler, flags, name) as path:
            found = ctypes.CDLL(str(path))
        for function_name, (result, arguments) in functions.items():
            function = getattr(found, f"graphmill_{function_name}")
            function.restype, function.argtypes = result, arguments
        return found
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode(errors="replace").strip().splitlines()[-1:] or [str(error)]
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = [str(error)]
    log.warning("%s: no compiled code (%s): %s", name, reason[0], instead)
    return None


def address(values: npt.NDArray[Any]) -> int:
    """Return the memory address of a contiguous array's values."""
    if not values.flags.c_contiguous:
        raise ValueError("compiled loops expect the values of an array one after the other")
    return values.ctypes.data


@contextmanager
def _compiled(source_path: Path, compiler: str, flags: Sequence[str], name: str) -> Iterator[Path]:
    """Yield the path of the shared object; the file may be deleted after the block."""
    stem = f"{name}-{_fingerprint(source_path, compiler, flags)}"
    command = [compiler, *flags, str(source_path)]
    try:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
        folder = root / "graphmill"
        make_private(folder, forbidden_mode=_WRITABLE_BY_OTHERS)
        path = _kept(folder, stem) or _compile(command, folder, stem)
    except (OSError, RuntimeError) as error:  # no private folder, or no home: each process compiles
        log.debug("%s: compiled code cannot be kept: %s", name, error)
        with tempfile.TemporaryDirectory(prefix="graphmill-") as own:
            yield _compile(command, Path(own), stem)
    else:
        yield path


def _kept(folder: Path, stem: str) -> Path | None:
    """Find an unchanged shared object; delete all others of that name."""
    for path in sorted(folder.glob(f"{stem}-*.so")):
        with suppress(FileNotFoundError):  # another process has just deleted it
            found = path.lstat()
            is_private = found.st_uid == os.geteuid() and not found.st_mode & _WRITABLE_BY_OTHERS
            if is_private and stat.S_ISREG(found.st_mode) and path.name == name_of(stem, path):
                return path
            log.warning("%s is not what was compiled here, and is compiled anew", path)
            path.unlink()
    return None


def name_of(stem: str, path: Path) -> str:
    """Return the file name of the shared object at `path`, with its checksum."""
    with path.open("rb") as file:
        return f"{stem}-{hashlib.file_digest(file, _digest).hexdigest()}.so"


def _compile(command: list[str], folder: Path, stem: str) -> Path:
    """Compile to `folder`, and return the path of the shared object."""
    log.info("%s: compiling, once on this machine", stem.partition("-")[0])
    for leftover in folder.glob(f"{_WORK}*"):
        with suppress(FileNotFoundError):  # its process has just deleted it
            if time.time() - leftover.stat().st_mtime > 2 * TIME_LIMIT_S:
                shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_WORK, dir=folder) as work:
        made = Path(work, "made.so")
        subprocess.run(
            [*command, "-o", str(made)],
            check=True,
            capture_output=True,
            timeout=TIME_LIMIT_S,
            env=os.environ | {"TMPDIR": work},
        )
        made.chmod(0o700)
        path = folder / name_of(stem, made)
        _sync(made)
        made.rename(path)
    _sync(folder)
    return path


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest() -> "hashlib.blake2b":
    return hashlib.blake2b(digest_size=12)


def _fingerprint(source_path: Path, compiler: str, flags: Sequence[str]) -> str:
    """Hash everything that the machine code depends on."""
    version = subprocess.run([compiler, "--version"], check=True, capture_output=True, timeout=60).stdout
    digest = _digest()
    for path in sorted(each for each in source_path.parent.iterdir() if each.is_file()):
        digest.update(path.read_bytes())
    for part in (version, " ".join(flags).encode(), platform.machine().encode(), _processor()):
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
