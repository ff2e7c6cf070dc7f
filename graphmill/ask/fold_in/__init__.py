"""`graphmill fold-in`: vectors for ids that a trained run has never seen, from their few edges."""
