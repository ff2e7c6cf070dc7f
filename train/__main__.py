"""`python -m train` and `python -m train evaluate`."""

from graphmill.cli import exit_codes
from graphmill.cli.train import command

if __name__ == "__main__":
    exit_codes.main(command)
