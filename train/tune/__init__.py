"""`graphmill tune`: search space, successive halving, the densest part of a graph (k-core)."""
