"""`graphmill fold-in` on a cluster: tables of edges of new ids -> vectors."""
