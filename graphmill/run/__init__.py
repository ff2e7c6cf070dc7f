"""One run: run.json, locks, the places it writes, its date."""
