"""`python -m etl`: the command of the stage."""

from graphmill.cli import exit_codes
from graphmill.cli.etl import command

if __name__ == "__main__":
    exit_codes.main(command)
