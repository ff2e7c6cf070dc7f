"""`graphmill.open()`: a finished run as an object for notebooks and scripts."""

from graphmill.library.run import Run as Run
