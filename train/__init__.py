"""Edge buckets -> checkpoints, and their evaluation."""
