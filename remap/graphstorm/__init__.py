"""What GraphStorm saved -> tables keyed by raw id: its own remap command, with nothing lost."""
