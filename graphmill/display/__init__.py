"""What a command shows: log lines, errors, tables, progress, figures as people read them."""
