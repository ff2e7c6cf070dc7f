"""A run of etl: checks before it, files that an earlier run had (`sources`), outputs, resume after the
last finished step (`work`), figures.
"""
