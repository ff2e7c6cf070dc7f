"""Training on a GPU: fused kernels, captured steps (CUDA graphs), copies beside steps. Edges, rows and
random numbers stay on the device; no step waits for the host.
"""
