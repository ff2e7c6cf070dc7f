"""Operators, comparators and losses: what there is and what each can do (`built_in`), formulas for torch
and numpy, keys of their parameters, registries and base classes of plug-ins, probabilities
(`calibration`).
"""
