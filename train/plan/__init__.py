"""The plan of a run: device, engine, placement of rows, threads and workers."""
