"""The driver in a container: its process, its output as files, lines about containers."""

import logging
import os
import signal
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphmill.cluster import driver
from graphmill.cluster.driver import Reader
from graphmill.cluster.hadoop import YarnClient
from graphmill.cluster.yarn import ContainerEvents
from graphmill.errors import StorageError
from tests.logged import messages_of
from tests.processes import completed, executable

pieces = st.lists(st.tuples(st.sampled_from(driver.STREAMS), st.binary(max_size=30), st.booleans()))


@settings(max_examples=30)
@given(attempts=st.lists(pieces, min_size=1, max_size=2))
def test_each_byte_is_shown_once(attempts, tmp_path_factory, monkeypatch, capfdbinary):
    """Also of a driver that has begun again, and of a reader that comes late."""
    monkeypatch.setattr(driver, "PART_BYTES", 16)
    folder = str(tmp_path_factory.mktemp("log"))
    capfdbinary.readouterr()
    reader, expected = driver.Reader(folder), dict.fromkeys(driver.STREAMS, b"")
    for number, texts in enumerate(attempts):
        writer = driver.Writer(folder)
        for stream, text, is_flushed in texts:
            writer.add(stream, text)
            expected[stream] += text
            if is_flushed:
                writer.flush()
                reader.show()
        writer.flush()
        assert reader.exit_code() is None
        if number == len(attempts) - 1:
            writer.finish(75)
    assert reader.exit_code() == 75
    reader.show()
    assert not reader.show()
    assert tuple(capfdbinary.readouterr()) == tuple(expected.values())
    assert driver.Reader(folder).show() is any(expected.values())
    assert tuple(capfdbinary.readouterr()) == tuple(expected.values())


def test_a_write_that_fails_is_made_good_by_the_next(tmp_path, capfdbinary):
    folder = tmp_path / "log"
    folder.write_text("in the way")
    writer = driver.Writer(str(tmp_path / "log"))
    writer.add("stdout", b"first\n")
    with pytest.raises(StorageError):
        writer.flush()
    folder.unlink()
    writer.add("stdout", b"second\n")
    writer.finish(0)
    driver.Reader(str(folder)).show()
    assert capfdbinary.readouterr().out == b"first\nsecond\n"


def test_the_parts_are_in_the_order_of_their_numbers(tmp_path, capfdbinary):
    for number in (9_998, 9_999, 10_000):
        (tmp_path / f"stdout-{number}").write_text(f"{number}\n")
    driver.Reader(str(tmp_path)).show()
    assert capfdbinary.readouterr().out == b"9998\n9999\n10000\n"


KILLED = "import os, sys; print('out'); print('err', file=sys.stderr, flush=True); os.abort()"


@pytest.mark.slow
def test_a_command_that_a_signal_ends_is_told_to_the_client(tmp_path, capfd):
    (tmp_path / "tmp").mkdir()
    (tmp_path / "conf").mkdir()
    command = [sys.executable, "-m", "graphmill.cluster.driver", str(tmp_path / "logs"), "-c", KILLED]
    of_yarn = {"CONTAINER_ID": "container_17_0001_01_000002", "HADOOP_CONF_DIR": str(tmp_path / "conf")}
    done = completed(*command, cwd=tmp_path, env=os.environ | of_yarn, code=128 + signal.SIGABRT)
    reader = Reader(str(tmp_path / "logs" / "application_17_0001"))
    assert reader.exit_code() == done.returncode
    reader.show()
    output, errors = capfd.readouterr()
    assert output == done.stdout == "out\n"
    assert errors.startswith(f"{done.stderr}error: SIGABRT has ended the driver")


FIRST, SECOND, OTHER, LATER, LAST = (
    f"container_e17_1795403766182_{end}"
    for end in ("0001_01_000002", "0001_01_000003", "0002_01_000002", "0001_02_000002", "0001_02_000003")
)

# As the application master of Hadoop 3.4.2 writes it.
LOG = f"""
[AMRM Callback Handler Thread] ERROR o.a.h.y.applications.distributedshell.ApplicationMaster - \
appattempt_1795403766182_0001_000001 got container status for containerID={FIRST}, state=COMPLETE, \
exitStatus=-104, diagnostics=[2026-11-23 03:27:02.034]Container is running beyond the 'PHYSICAL' memory limit.
Container id: {FIRST}
"""


@pytest.fixture
def events(tmp_path, caplog, monkeypatch):
    """Told by a `yarn` that has logs of the first application alone."""
    monkeypatch.setattr(logging.getLogger("graphmill"), "propagate", True)
    caplog.set_level(logging.INFO, "graphmill")
    monkeypatch.setattr("graphmill.cluster.yarn.LOOK_S", 0)
    (tmp_path / "late").write_text(LOG)
    # the end of a container is in the log when YARN is asked again
    text = f'cd {tmp_path}\n[ "$3" = application_1795403766182_0001 ] && cat log\nmv late log; true'
    yarn = executable(tmp_path / "yarn", text)
    return ContainerEvents(YarnClient((str(yarn),), "", str(tmp_path)))


def test_containers_that_are_gone_are_told_with_their_ends(events: ContainerEvents) -> None:
    events.see({FIRST: "node1", SECOND: "node2", OTHER: "node3"})
    events.see({SECOND: "node2"})
    beyond = "Container is running beyond the 'PHYSICAL' memory limit."
    memory = f"exit status -104: [2026-11-23 03:27:02.034]{beyond}"
    missing = events.missing(threading.Event())
    assert f"{FIRST} on node1: {memory}" in missing
    assert f"{OTHER} on node3: see yarn logs -applicationId application_1795403766182_0002" in missing


def test_replacements_and_new_attempts_of_application_masters_are_told(events, caplog):
    events.see({FIRST: "node1", SECOND: "node2"})
    events.see({SECOND: "node2"})
    events.see({SECOND: "node2", FIRST: "node1"})  # its worker has started again in the same container
    assert not messages_of(caplog)
    events.see({SECOND: "node2", FIRST: "node1", LATER: "node3"})  # which replaces none
    events.see({SECOND: "node2", LATER: "node3"})
    events.see({SECOND: "node2", LATER: "node3", LAST: "node4"})
    assert messages_of(caplog) == [
        "yarn: attempt 2 of the application master of application_1795403766182_0001 began",
        f"yarn: {LAST} on node4 replaces {FIRST} on node1",
    ]
    assert not events.missing(threading.Event())
