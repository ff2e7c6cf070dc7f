"""Raw edge tables with string ids -> entity index, entity counts and edge buckets. `pieces`: rows of tables,
checked for `fold-in`, or with all their columns for `features`.
"""
