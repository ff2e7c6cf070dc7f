"""`graphmill features`: tables with vectors joined in by raw id, as columns."""
