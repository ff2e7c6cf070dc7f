"""`python -m graphmill`."""

from graphmill.cli.main import main

if __name__ == "__main__":
    main()
