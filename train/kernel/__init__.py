"""A training step on CPU, compiled on this machine when it is first wanted.

    build.py     native/*.cpp -> a shared object in the user's cache folder
    step.py      a batch -> the addresses of what it touches -> one call
    native/      the step itself, in C++: step.cpp, and chunk.h, a chunk's negatives

It does what train/step/step.py does, which stays the reference, and the way out where there is no compiler or
where the configuration asks for what the kernel cannot do. It knows CPUs with and without AVX-512; with
avx512_bf16, `half_precision` takes the operands of the products in bfloat16.
"""
