"""Lines of the log about containers that go and come."""

import logging
from pathlib import Path

import pytest

from graphmill.cluster.hadoop import YarnClient
from graphmill.cluster.yarn import ContainerEvents

FIRST, SECOND, OTHER, LATER = (
    f"container_e17_1795403766182_{end}"
    for end in ("0001_01_000002", "0001_01_000003", "0002_01_000002", "0001_02_000002")
)

# As the application master of Hadoop 3.4.2 writes it.
LOG = f"""
[AMRM Callback Handler Thread] ERROR o.a.h.y.applications.distributedshell.ApplicationMaster - \
appattempt_1795403766182_0001_000001 got container status for containerID={FIRST}, state=COMPLETE, \
exitStatus=-104, diagnostics=[2026-11-23 03:27:02.034]Container is running beyond the 'PHYSICAL' memory limit.
Container id: {FIRST}
"""


@pytest.fixture
def events(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> ContainerEvents:
    """Told by a `yarn` that has logs of the first application alone."""
    monkeypatch.setattr(logging.getLogger("graphmill"), "propagate", True)
    caplog.set_level(logging.INFO, "graphmill")
    (tmp_path / "log").write_text(LOG)
    yarn = tmp_path / "yarn"
    yarn.write_text(f'#!/bin/sh\n[ "$3" = application_1795403766182_0001 ] && cat {tmp_path}/log\n')
    yarn.chmod(0o755)
    return ContainerEvents(YarnClient((str(yarn),), "", str(tmp_path)))


def test_containers_that_are_gone_are_told_with_their_ends(events: ContainerEvents) -> None:
    events.see({FIRST: "node1", SECOND: "node2", OTHER: "node3"})
    events.see({SECOND: "node2"})
    memory = (
        "exit status -104: [2026-11-23 03:27:02.034]Container is running beyond the 'PHYSICAL' memory limit."
    )
    assert f"{FIRST} on node1: {memory}" in events.missing()
    assert (
        f"{OTHER} on node3: see yarn logs -applicationId application_1795403766182_0002" in events.missing()
    )


def test_replacements_and_new_attempts_of_application_masters_are_told(
    events: ContainerEvents, caplog: pytest.LogCaptureFixture
) -> None:
    events.see({FIRST: "node1", SECOND: "node2"})
    events.see({SECOND: "node2"})
    events.see({SECOND: "node2", FIRST: "node1"})  # its worker has started again in the same container
    assert not caplog.messages
    events.see({SECOND: "node2"})
    events.see({SECOND: "node2", LATER: "node3"})
    assert caplog.messages == [
        "yarn: attempt 2 of the application master of application_1795403766182_0001 began",
        f"yarn: {LATER} on node3 replaces {FIRST} on node1",
    ]
    assert not events.missing()
