"""Raw ids by number, from tables larger than a processor's caches."""
