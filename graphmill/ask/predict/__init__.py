"""`graphmill predict`: the best candidates for ids along a relation, similar ids, scores of pairs; known
edges left out (`search`), probabilities; approximate answers by lists, and their recall (`approximate`).
"""
