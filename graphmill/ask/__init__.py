"""A trained run as its users ask it: vectors and raw ids of its entities, scores of its relations."""
