"""The version of GraphMill."""

__version__ = "0.1.0"
