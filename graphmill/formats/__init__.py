"""One module a file format, independent of each other; import the one you need.

Readers raise `NotFoundError` for a missing file, and `FormatError` for a file that is damaged, has another
checksum than in its manifest, or does not follow its page in docs/formats.
"""
