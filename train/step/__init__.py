"""One gradient step in torch, on edges (read `plain` first) or on queries of 1-vs-all (`queries`); which
edges and rows a `delta` trains.
"""
