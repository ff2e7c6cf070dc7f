"""This machine and this process: compiled code, scratch folders, the owner of a lock, interrupts."""
