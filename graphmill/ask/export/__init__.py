"""`graphmill export`: formats (parquet, npy, Arrow, faiss, word2vec, projector), codecs (int8, pq), the loss
of smaller vectors, and how to score with them (`model`). To add a format, write a function that writes a
partition, and a line of `FORMATS` in `job`.
"""
