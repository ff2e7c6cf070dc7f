"""The input of remap: a version of a checkpoint and the raw ids of its rows."""
