"""Raw tables: their files, cut into ranges, read as blocks of checked rows."""
