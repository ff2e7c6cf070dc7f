"""A look at raw tables: columns, types and distinct values of a sample; and the graph that they may be."""
