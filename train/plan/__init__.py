"""The plan of a run: device, the step of each sort of batch, batches at the same time (Hogwild),
placement of rows, workers.
"""
