"""Training in child processes that are killed, and what the next runs make of it.

A kill point is one of the events that change anything outside the process or come between: a rename (before
it, after it), a deletion, a step.
"""

import os
import shutil
import signal
import threading
import time
from pathlib import Path

import distributed

from graphmill import storage
from graphmill.checkpoints import pbg
from graphmill.config.partitions import all_keys
from graphmill.run.lock import NO_CLAIM
from graphmill.storage import fs
from tests.contents import contents
from tests.workers import apart
from train import job
from train.edges.schedule import is_delta
from train.run import bucket  # noqa: F401  # has all steps
from train.run.ensemble import is_joined, members_of
from train.step.step import Step
from train.tables import given_rows, given_vectors


def count_events(on_event, step_s, is_beside_steps):
    """Call `on_event` at every event of this process from now on; each step takes `step_s` seconds more.

    `is_beside_steps`: the first commit waits for a step after its first event, 5 s at most.
    """
    move, delete = fs.move, fs.delete
    stepped, first_beside = threading.Event(), iter([is_beside_steps])

    def on_file():
        is_beside = threading.current_thread().name.startswith("commit")
        on_event("c" if is_beside else ".")
        if is_beside and next(first_beside, False):
            stepped.clear()
            stepped.wait(5)

    def watched_move(*arguments):
        on_file()
        move(*arguments)
        on_file()

    def watched_delete(uri):
        on_file()
        delete(uri)

    def watched(step):
        def watched_step(*arguments):
            on_event("s")
            stepped.set()
            time.sleep(step_s)
            return step(*arguments)

        return watched_step

    fs.move = storage.move = watched_move
    fs.delete = storage.delete = watched_delete
    for kind in Step.__subclasses__():
        kind.__call__ = watched(kind.__call__)


def in_child(config, step_s, kill_at=None) -> tuple[int, str]:
    """Train in a forked child, killed at event number `kill_at`; its wait status and events."""
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        with os.fdopen(reader) as stream:
            events = stream.read()
        return os.waitpid(child, 0)[1], events
    seen = 0
    lock = threading.Lock()

    def on_event(kind):
        nonlocal seen
        with lock:
            if seen == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            seen += 1
            os.write(writer, kind.encode())

    count_events(on_event, step_s, step_s > 0 and not pbg.read_version(config.checkpoint_path))
    if is_delta(config):  # folds in by tasks
        with distributed.Client(processes=False, threads_per_worker=1, dashboard_address=None) as client:
            job.run(config, client)
        os._exit(0)
    job.claim_checkpoint(config)
    members = members_of(config)
    for member in members if len(members) > 1 else ():
        job.claim_checkpoint(member)
    if given_vectors.is_needed(config, members):
        given_vectors.make(members[0])
    for member in members:
        job.train(member)
    if len(members) > 1 and not is_joined(config):
        join(config)
    given_rows.delete(given_rows.folder_of(config), NO_CLAIM)
    os._exit(0)


def join(config) -> None:
    """Join the members of an ensemble, as the tasks of `job.run` do."""
    version = pbg.read_version(config.checkpoint_path) + 1
    pbg.delete_uncommitted(config.checkpoint_path)
    written = [job.join_partition(config, key, version) for key in all_keys(config)]
    job.join_model(config, version, {uri: each for found in written for uri, each in found.items()})


def kill_anywhere(config, every, step_s=0.0) -> str:
    """Kill training at one event of so many, and run it again: the bytes are those of an undisturbed run.

    Returns a letter for every event of a whole run: s for a step, c for one in the thread that commits.
    """
    return apart(_kill_anywhere, config, every, step_s)


def _kill_anywhere(config, every, step_s) -> str:
    status, order = in_child(config, step_s)
    assert status == 0
    whole = contents(config.checkpoint_path)
    points = range(0, len(order), every)
    assert len(points) > 5
    for point in points:
        shutil.rmtree(Path(config.checkpoint_path))
        killed, _ = in_child(config, step_s, point)
        assert os.WTERMSIG(killed) == signal.SIGKILL, point
        assert in_child(config, step_s)[0] == 0, point
        after = contents(config.checkpoint_path)
        assert [name for name in whole.keys() | after.keys() if whole.get(name) != after.get(name)] == [], (
            point
        )
    return order
