"""Training steps on CPUs in C++, by the machine code of the installation, or compiled when a run first
needs them.

Sources: graphmill/kernels. train/step/plain.py defines the result of a step on edges, and takes over
if there is no compiler, or if the compiled step cannot train the configuration. The code uses AVX-512 if the
CPU has it; where AVX512-BF16 is fast, `half_precision` rounds the operands of products to bfloat16.
"""
