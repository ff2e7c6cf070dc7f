"""`python -m graphmill`."""

from graphmill.cli.entry import graphmill

if __name__ == "__main__":
    graphmill()
