"""Holders of the rows of embeddings: checkpoint files, host memory, device memory."""
