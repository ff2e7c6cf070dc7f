"""Holders of the rows of embeddings: partition swapping and prefetch, device buffer,
writing beside the steps, warm start (`init_path`), rows of `init_embeddings` (`given_*`), new ids of a
delta (`folded_*`).
"""
