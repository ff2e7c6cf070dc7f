"""Compiles GraphMill's C++ while hatchling builds the wheel: every variant of graphmill/machine/variants.py.

Such a wheel is for x86-64 Linux, and its machines need no compiler. The wheel is pure Python without a C++
compiler (g++, or $CXX), on other processors, for editable installs, and with HATCH_BUILD_NO_HOOKS=true; then
each machine compiles for itself.
"""

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_PACKAGES = ("graphmill", "etl", "train", "remap")
_TIME_LIMIT_S = 600


class CompiledCode(BuildHookInterface):  # type: ignore[type-arg]
    """Adds shared objects to the wheel, beside their sources."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it writes the wheel; `version` is `standard` or `editable`."""
        variants = _module(Path(self.root, "graphmill", "machine", "variants.py"))
        compiler = shutil.which(os.environ.get("CXX") or "g++") or shutil.which("c++")
        is_known = sys.platform == "linux" and platform.machine() == variants.MACHINE
        if version == "editable" or compiler is None or not is_known:
            return
        self._folder = tempfile.TemporaryDirectory(prefix="graphmill-build-")
        folder = Path(self._folder.name)
        sources = [path for package in _PACKAGES for path in sorted(Path(self.root, package).rglob("*.cpp"))]

        def compiled(pair: tuple[Path, str]) -> tuple[str, str] | None:
            source_path, variant = pair
            place = variants.installed_path(source_path.relative_to(self.root), variant)
            made = folder / "-".join(place.parts)
            command = variants.command(compiler, variant)
            try:
                subprocess.run(
                    [*command, source_path, "-o", made],
                    check=True,
                    capture_output=True,
                    timeout=_TIME_LIMIT_S,
                )
            except (OSError, subprocess.SubprocessError) as error:  # an old compiler does not know all levels
                self.app.display_warning(f"{place}: left out: {error}")
                return None
            return str(made), str(place)

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
            made = [pair for pair in threads.map(compiled, product(sources, variants.VARIANTS)) if pair]
        if made:
            build_data["force_include"].update(made)
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-linux_{variants.MACHINE}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Called by hatchling after it has written the wheel."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()


def _module(path: Path) -> ModuleType:
    """Import one file; its package needs what is not installed here."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
