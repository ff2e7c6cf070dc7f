"""Variants of GraphMill's compiled code, one per level of x86-64 processors (the x86-64 psABI's levels).

    x86-64-v3        AVX2                        Intel from Haswell on, AMD Zen
    x86-64-v4        AVX-512                     Intel Xeon from Skylake on, AMD from Zen 4 on
    x86-64-v4-bf16   and products of bfloat16    AMD from Zen 4 on
    x86-64-v4-amx    and tiles of them           Intel Xeon from Sapphire Rapids on
    native           -march=native: other processors, and compilers that do not know these levels

hatch_build.py compiles the first four into the wheel, before any dependency is installed: this module needs
the standard library alone. What one compiler makes of a variant gives the same bits on every processor.
"""

import os
import platform
from pathlib import Path

# No -ffast-math: sums keep their order, so that the same input gives the same output.
FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
NATIVE = "native"
MACHINE = "x86_64"
# PyTorch's own limit of its CPU kernels (default, avx2, avx512), which holds here too.
LIMIT_VARIABLE = "ATEN_CPU_CAPABILITY"

_V3 = frozenset({"avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"})
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_BFLOAT16 = "x86-64-v4-bf16"
# By name, the best first: the processor's features as Linux names them, and the compiler's options.
_VARIANTS = {
    "x86-64-v4-amx": (
        _V4 | {"avx512_bf16", "amx_tile", "amx_bf16"},
        ("-march=x86-64-v4", "-mavx512bf16", "-mamx-tile", "-mamx-bf16"),
    ),
    _BFLOAT16: (_V4 | {"avx512_bf16"}, ("-march=x86-64-v4", "-mavx512bf16")),
    "x86-64-v4": (_V4, ("-march=x86-64-v4",)),
    "x86-64-v3": (_V3, ("-march=x86-64-v3",)),
}
VARIANTS = tuple(_VARIANTS)


def variants_here() -> list[str]:
    """List what this processor runs and $ATEN_CPU_CAPABILITY allows; the best first, NATIVE last."""
    features = _features()
    if os.environ.get(LIMIT_VARIABLE) in ("default", "avx2"):
        features = {feature for feature in features if not feature.startswith("avx512")}
    return [*(name for name, (needed, _) in _VARIANTS.items() if needed <= features), NATIVE]


def has_bfloat16_products() -> bool:
    """Tell whether this processor multiplies bfloat16 numbers, and $ATEN_CPU_CAPABILITY allows it."""
    return _BFLOAT16 in variants_here()


def command(compiler: str, variant: str) -> list[str]:
    """Return the command that compiles one variant, without the paths to read and to write."""
    return [compiler, *FLAGS, *(_VARIANTS[variant][1] if variant in _VARIANTS else ("-march=native",))]


def installed_path(source_path: Path, variant: str) -> Path:
    """Return the place of a variant's shared object in an installation: beside its source."""
    return source_path.with_suffix(f".{variant}.so")


def _features() -> set[str]:
    """Return the features of an x86-64 processor that the kernel has enabled; else nothing."""
    cpuinfo = Path("/proc/cpuinfo")
    if platform.machine() != MACHINE or not cpuinfo.exists():
        return set()
    lines = cpuinfo.read_text().splitlines()
    return set(next((line for line in lines if line.startswith("flags")), "").split())
