"""`graphmill predict`: the best candidates for ids along a relation, similar ids, scores of pairs; known
edges left out, probabilities (`calibrated`); approximate answers by lists, and their recall (`tuning`).
"""
