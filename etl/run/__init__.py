"""The run around the steps: checks, outputs, the work done so far, figures."""
