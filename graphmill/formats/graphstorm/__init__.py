"""GraphStorm: maps of raw ids, and what its models save by rank: embeddings and predictions."""

EMB_INFO = "emb_info.json"  # recognition of checkpoints needs this name alone
