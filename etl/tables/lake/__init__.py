"""Tables of Delta Lake and Apache Iceberg: a snapshot's files, as the table's log names them."""
