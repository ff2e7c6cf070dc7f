"""The stage drift: how far the vector of each id has moved since the run before (cosines, `max_p10`)."""
