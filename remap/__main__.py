"""`python -m remap`: the stage's door, which is also that of GraphStorm's remap command."""

import sys

from graphmill.machine import forkserver

if __name__ == "__main__" and "neighbors" not in sys.argv[1:]:  # which starts no workers
    forkserver.start_for("remap", sys.argv[1:])

from graphmill.cli import stage_command
from remap.command import command

__all__ = ["command"]

if __name__ == "__main__":
    stage_command.main(command)
