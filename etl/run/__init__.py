"""Checks, outputs, journal and figures of a run."""
