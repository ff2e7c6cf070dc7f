"""The arithmetic that several stages need: operators, comparators, and the keys of their parameters."""
