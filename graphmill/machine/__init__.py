"""This machine and process: compiled code, shared tables, identity, interrupts."""
