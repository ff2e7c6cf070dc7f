"""Scores on a GPU: how many candidates score higher, and which score highest; no score is kept.

device.py       the GPU of a process, and copies to it
reference.py    the functions of the kernels in plain torch: what the kernels are tested against
kernels.py      the same functions, in Triton
best.py         the best candidates of queries, exact, with ties in the order of the candidates
"""
