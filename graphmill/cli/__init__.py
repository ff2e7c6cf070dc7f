"""Commands: `graphmill` with all its commands, the table of `stages`, what runs around a stage
(`session`), options from keys (`section_options`), dask-submit, `--conf`, `--set`, exit codes.
"""
