"""Raw edge tables with string ids -> entity index, entity counts and edge buckets. `pieces`: checked
rows of tables for `fold-in`; `whole_rows`: rows with all their columns for `features`.
"""
