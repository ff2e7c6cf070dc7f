"""Raw edge tables with string ids -> entity index, entity counts and edge buckets."""
