"""Benchmarks: each stage against the limits of the machine and against other programs."""
