"""Figures of a run for others while it works: metrics for Prometheus, events for OpenLineage."""
