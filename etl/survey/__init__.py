"""A look at raw tables for `graphmill init` (how files are written, columns, ends, relations, weights)
and estimates for `graphmill check` (`outlook`).
"""
