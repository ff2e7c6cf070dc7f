"""The model's arithmetic: operators, comparators, losses, optimizer, learning rates, features."""
