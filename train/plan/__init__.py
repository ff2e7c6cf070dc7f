"""The plan of a run: device, the step of each sort of batch, batches at the same time, placement of rows."""
