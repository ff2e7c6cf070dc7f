"""This machine and process: compiled C++ and its variants, scratch on local disks, processes, signals."""
