"""Tables of Delta Lake and Apache Iceberg: a snapshot's files and deleted rows, as the table's log names
them.
"""
