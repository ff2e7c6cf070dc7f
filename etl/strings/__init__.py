"""Strings by number: the string dictionary in C++, MurmurHash of raw ids, tables that keep one of equal
ids.
"""
