"""Training step on CPU, compiled on this machine when a run first needs the step.

    compiled_step.py    a batch -> the addresses of its tensors -> one call
    native/             the step itself, in C++: step.cpp, and chunk.h, a chunk's negatives
    query_passes.py     softmax and moved rows of a step on queries, by native/query_step.cpp
    counts.py           counts of a ranking, by native/counts.cpp

train/step/plain.py defines the result. The plain step takes over if there is no compiler, or if the compiled
step cannot train the configuration. The code uses AVX-512 if the CPU has AVX-512; with avx512_bf16,
`half_precision` rounds the operands of products to bfloat16.
"""
