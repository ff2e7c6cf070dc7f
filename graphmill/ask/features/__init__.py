"""Tables with vectors joined in by raw id."""
