"""The display of a command: log lines, errors, tables, progress, figures as people read them."""
