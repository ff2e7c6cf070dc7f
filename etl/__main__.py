"""`python -m etl`: the stage's door."""

import sys

from graphmill import forkserver

if __name__ == "__main__":
    forkserver.start_for("etl", sys.argv[1:])

from graphmill import door  # with what the workers import too

command = door.stage_command("etl")

if __name__ == "__main__":
    door.main(command)
