"""Edge buckets -> checkpoints."""
