"""Trains in child processes that are killed on the way: `python -m tests.train.kill_driver CONFIG.json`.

Prints, as JSON, for every kill point what the next run made of it. A kill point is one of the events that
change anything outside the process or come between: a rename (before it, after it), a deletion, a step.
"""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

from graphmill import config as configuration
from graphmill import storage
from graphmill.storage import fs
from tests.train.graphs import contents
from train import job
from train.run.bucket import BatchStep


def count_events(on_event):
    """Call `on_event` at every event of this process from now on."""
    move, delete, step = fs.move, fs.delete, BatchStep.__call__

    def watched_move(*arguments):
        on_event()
        move(*arguments)
        on_event()

    def watched_delete(uri):
        on_event()
        delete(uri)

    def watched_step(*arguments):
        on_event()
        return step(*arguments)

    fs.move = storage.move = watched_move
    fs.delete = storage.delete = watched_delete
    BatchStep.__call__ = watched_step


def in_child(config, kill_at=None) -> tuple[int, int]:
    """Train in a forked child, killed at event number `kill_at`; its wait status and number of events."""
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        with os.fdopen(reader) as stream:
            events = len(stream.read())
        return os.waitpid(child, 0)[1], events
    seen = 0

    def on_event():
        nonlocal seen
        if seen == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        seen += 1
        os.write(writer, b".")

    count_events(on_event)
    job.claim_checkpoint(config)
    job.train(config)
    os._exit(0)


def main() -> None:
    config = configuration.load(sys.argv[1])
    every = int(sys.argv[2])
    status, num_events = in_child(config)
    whole = contents(config.checkpoint_path)
    report = {"events": num_events, "status": status, "points": []}
    for point in range(0, num_events, every):
        shutil.rmtree(Path(config.checkpoint_path))
        killed, _ = in_child(config, point)
        finished, _ = in_child(config)
        after = contents(config.checkpoint_path)
        differing = sorted(name for name in whole.keys() | after.keys() if whole.get(name) != after.get(name))
        report["points"].append([os.WTERMSIG(killed), finished, differing])
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main()
