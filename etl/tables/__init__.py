"""Raw tables: file patterns, Hive folders, filters, checks of rows, quarantine of bad rows; files cut
into ranges and read as blocks of rows.
"""
