"""This machine and process: compiled code, private folders, shared tables, identity, interrupts."""
