"""GraphMill: embeddings of graphs too big for one table, keyed by the string ids they came with."""

__version__ = "0.1.0"
