"""One module or package per file format, independent of each other: entity index, counts, edge buckets,
published embeddings (`remapped`), calibration, checked HDF5; hash of raw ids (`murmur`).

Readers raise `NotFoundError` for a missing file, and `FormatError` for a file that is damaged, has another
checksum than in its manifest, or does not follow its page in docs/formats.
"""
