"""Parts of a model for training alone: masks, losses of its own, optimizer, learning rates, features."""
