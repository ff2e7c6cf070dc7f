"""Benchmarks: each stage against the machine's own limits, and against the programs that people use today."""
