"""Evaluation: ranking, the metrics of its parts, predictions."""
