"""A training step on CPU, compiled on this machine when a run first needs it.

    compiled_step.py    a batch -> the addresses of its tensors -> one call
    native/             the step itself, in C++: step.cpp, and chunk.h, a chunk's negatives

It computes what train/step/plain.py computes, which defines the result. The plain step takes over where there
is no compiler, or where the compiled step cannot train the configuration. The code uses AVX-512 where the CPU
has it; with avx512_bf16, `half_precision` takes the operands of products in bfloat16.
"""
