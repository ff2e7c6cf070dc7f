"""`python -m remap`: the command of the stage, and GraphStorm's remap command."""

from graphmill.cli import exit_codes
from graphmill.cli.remap import command

if __name__ == "__main__":
    exit_codes.main(command)
