"""Training on a GPU: edges, rows and random numbers stay on the device; no step waits for the host.

supported.py     configurations and devices that the kernels can train
fused_step.py    one step: sample, score, gradients, Adagrad
operator_rows.py parameters of relations, as tables that steps know
fused_pass.py    a pass over edges, step by step or as replays of captured graphs
capture.py       capture of a step as a CUDA graph, and its second branch
kernels/         the functions of a step, in Triton
reference.py     the same functions in plain torch: what the kernels are tested against
counter.py       random numbers without state
copies.py        copies between host and device, beside the steps
"""
