"""Raw tables: their files, cut into sources, read as blocks of checked rows."""
