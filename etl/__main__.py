"""`python -m etl`: the stage's door."""

from graphmill import door

command = door.stage_command("etl")

if __name__ == "__main__":
    door.main(command)
