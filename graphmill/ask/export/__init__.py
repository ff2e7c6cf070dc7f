"""`graphmill export`: codecs (int8, pq), the loss of smaller vectors, and how to score with them
(`model`).
"""
