"""`python -m etl`: the stage's door."""

import sys

from graphmill.machine import forkserver

if __name__ == "__main__":
    forkserver.start_for("etl", sys.argv[1:])

from graphmill.cli import stage_command  # with what the workers import too

command = stage_command.stage_command("etl")

if __name__ == "__main__":
    stage_command.main(command)
