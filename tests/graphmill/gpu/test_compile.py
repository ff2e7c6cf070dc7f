"""The kernels compile on any machine, for the GPUs that may run them: on matrix units, in their registers."""

import pytest

pytest.importorskip("triton", reason="triton comes with torch's builds for CUDA")

from tests.compiled_kernels import compiled_by

# compute capability -> its matrix instruction, KiB of a block's shared memory (80: those of 86), and bytes of
# spilled registers: on 80 a few, outside the innermost loop
GPUS = {80: ("mma.sync", 99, 100), 90: ("wgmma", 227, 0), 100: ("tcgen05", 227, 0)}
SCORES = ("pairs", "count", "maxima")


@pytest.mark.slow
def test_kernels() -> None:
    cases = compiled_by("tests.graphmill.gpu.compile_kernels", *map(str, GPUS))
    assert cases.keys() == set(map(str, GPUS))
    for capability, kernels in cases.items():
        instruction, shared_kib, spilled = GPUS[int(capability)]
        assert {name for name, *_ in kernels} == {*SCORES, "tiles"}
        for name, product, shared, stack, _ in kernels:
            assert int(shared) <= shared_kib * 1024
            assert int(stack) <= spilled
            assert product == (instruction if name in SCORES else "none")
        # one instruction: a score is the same in all kernels
        assert len({names for name, *_, names in kernels if name in SCORES}) == 1
