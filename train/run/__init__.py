"""A run of training: resume or restart (`claim`), the loop of iterations and commits, buckets, early
stopping, ensembles, metrics, TensorBoard.
"""
