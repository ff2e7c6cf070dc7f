"""Commands: what the stages' command lines share, dask-submit, the pipeline, work on files."""
