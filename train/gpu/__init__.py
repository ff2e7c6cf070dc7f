"""Training on a GPU: edges, rows and random numbers stay on the device; no step waits for the host.

supported.py     configurations and devices that the kernels can train
fused_step.py    one step: sample, score, gradients, Adagrad
fused_pass.py    a pass over edges, step by step or as replays of a captured graph
kernels/         the functions of a step, in Triton
reference.py     the same functions in plain torch: what the kernels are tested against
counter.py       random numbers without state
copies.py        copies between host and device, beside the steps
"""
