"""C++ of ours as machine code: compiled once for this source, compiler and processor, then kept.

~/.cache/graphmill/{name}-{fingerprint}.so      or under $XDG_CACHE_HOME
"""

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

# No -ffast-math: sums keep their order, so that the same input gives the same output.
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
TIME_LIMIT_S = 300

log = logging.getLogger("graphmill")


def library(
    source_path: Path,
    functions: Mapping[str, tuple[Any, Sequence[Any]]],
    *,
    name: str,
    instead: str,
    flags: Sequence[str] = FLAGS,
) -> ctypes.CDLL | None:
    """The shared object of a source, or None where it cannot be had; the log says why.

    Args:
        source_path: the file to compile; all files beside it count as included.
        functions: ctypes' result and arguments of each function, whose name in C++ begins with `graphmill_`.
        name: whose it is, for the log and the file's name.
        instead: what happens without it, for the log.
        flags: of the compiler.
    """
    compiler = shutil.which(os.environ.get("CXX") or "g++") or shutil.which("c++")
    if compiler is None:
        log.info("%s: no C++ compiler (g++) on this machine: %s, which takes longer", name, instead)
        return None
    try:
        found = ctypes.CDLL(str(_compiled(source_path, compiler, flags, name)))
        for function_name, (result, arguments) in functions.items():
            function = getattr(found, f"graphmill_{function_name}")
            function.restype, function.argtypes = result, arguments
        return found
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode(errors="replace").strip().splitlines()[-1:] or [str(error)]
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = [str(error)]
    log.warning("%s: the compiled code is not to be had (%s): %s", name, reason[0], instead)
    return None


def address(values: npt.NDArray[Any]) -> int:
    """Where the values of a contiguous array lie."""
    if not values.flags.c_contiguous:
        raise ValueError("compiled loops expect the values of an array one after the other")
    return values.ctypes.data


def _compiled(source_path: Path, compiler: str, flags: Sequence[str], name: str) -> Path:
    """Path of the shared object."""
    file_name = f"{name}-{_fingerprint(source_path, compiler, flags)}.so"
    for folder_of in (_cache_folder, _own_folder):
        try:
            folder = folder_of()
            path = folder / file_name
            if path.exists():
                return path
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(suffix=".so", dir=folder)
        except (OSError, RuntimeError):  # the user has no folder to write to, or no home: in each process
            continue
        os.close(handle)
        log.info("%s: compiling, once on this machine", name)
        try:
            command = [compiler, *flags, str(source_path), "-o", temporary]
            subprocess.run(command, check=True, capture_output=True, timeout=TIME_LIMIT_S)
            Path(temporary).rename(path)  # whole or not at all, whatever others compile meanwhile
        finally:
            Path(temporary).unlink(missing_ok=True)
        return path
    raise OSError("no folder for compiled code can be written")


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "graphmill"


def _own_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="graphmill-"))


def _fingerprint(source_path: Path, compiler: str, flags: Sequence[str]) -> str:
    """Of all that the machine code depends on."""
    version = subprocess.run([compiler, "--version"], check=True, capture_output=True, timeout=60).stdout
    digest = hashlib.blake2b(digest_size=12)
    for path in sorted(each for each in source_path.parent.iterdir() if each.is_file()):
        digest.update(path.read_bytes())
    for part in (version, " ".join(flags).encode(), platform.machine().encode(), _processor()):
        digest.update(part + b"\0")
    return digest.hexdigest()


def _processor() -> bytes:
    """What -march=native goes by: the processor's own list of what it can do."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return platform.processor().encode()
    kinds = (b"model", b"flags", b"cpu family", b"vendor_id", b"Features", b"CPU part")
    lines = {line for line in cpuinfo.read_bytes().splitlines() if line.startswith(kinds)}
    return b"\n".join(sorted(lines))
