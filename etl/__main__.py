"""`python -m etl`: the command of the stage."""

from graphmill.cli import exit_codes
from graphmill.cli.stage_command import stage_command

command = stage_command("etl")

if __name__ == "__main__":
    exit_codes.main(command)
