"""One gradient step in torch, and the process that takes steps.

plain.py      the step: score, loss, gradient, update; read this first
grouped.py    a step on queries, for edges that are compared with all entities
table.py      a table of embeddings and its optimizer state
threads.py    threads that take steps, or rank, side by side
runtime.py    the device, the number of threads, the allocator
"""
