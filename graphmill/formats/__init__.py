"""One module a file format, independent of each other; import the one you need."""
