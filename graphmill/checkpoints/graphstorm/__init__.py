"""GraphStorm: maps of raw ids, and what its models save by rank: embeddings and predictions."""
