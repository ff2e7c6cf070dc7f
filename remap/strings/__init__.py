"""Raw ids by integer id, from tables larger than a processor's caches."""
