"""`python -m remap`: the stage's door."""

from graphmill import door

command = door.stage_command("remap")

if __name__ == "__main__":
    door.main(command)
