"""Where the rows of embeddings live: checkpoint files, host memory, device memory."""
