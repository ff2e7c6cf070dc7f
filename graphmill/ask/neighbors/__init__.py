"""`graphmill neighbors`: nearest neighbours of an id, by cosine or along a relation."""
