"""A secured HDFS: Kerberos by keytab and by ticket cache, everything on the wire encrypted."""

import re
import tempfile
from collections.abc import Iterator
from ctypes.util import find_library
from pathlib import Path

import pytest

from tests.forked import Ended, Forks
from tests.hadoop.cluster import MiniHdfs, mini_hdfs
from tests.hadoop.jars import why_not

pytestmark = [pytest.mark.hdfs, pytest.mark.slow]

SETTINGS = {
    "mini.kerberos": "alice,hdfs",
    "hadoop.rpc.protection": "privacy",
    "dfs.data.transfer.protection": "privacy",
    "dfs.permissions.superusergroup": "nobody",
}

# Writes and reads a file as a worker would: in a process of its own, with what the environment says.
SCRIPT = """
import sys
from graphmill import storage
uri = sys.argv[1]
storage.write_text(uri, "secret of " + sys.argv[2])
print(storage.read_text(uri), storage.status(uri).size_bytes)
"""


@pytest.fixture(scope="module")
def secured() -> Iterator[MiniHdfs]:
    """An HDFS that nobody enters without a ticket."""
    if reason := why_not():
        pytest.skip(f"no HDFS: {reason}")
    if find_library("gssapi_krb5") is None:
        pytest.skip("no libgssapi_krb5, which hdfs-native loads for Kerberos; install libgssapi-krb5-2")
    with (
        tempfile.TemporaryDirectory(prefix="graphmill-kerberos-", ignore_cleanup_errors=True) as base,
        mini_hdfs(Path(base), settings=SETTINGS) as cluster,
    ):
        yield cluster


def attempt(forked: Forks, cluster: MiniHdfs, uri: str, **variables: str) -> Ended:
    base = cluster.conf_dir.parent
    environment = {
        "HADOOP_CONF_DIR": str(cluster.conf_dir),
        "KRB5_CONFIG": f"{base}/krb5.conf",
        "KRB5CCNAME": f"FILE:{base}/none",
    }
    return forked("python", "-c", SCRIPT, uri, "somebody", **environment | variables)


def test_a_keytab_lets_in_and_so_does_its_ticket(secured: MiniHdfs, forked: Forks) -> None:
    base = secured.conf_dir.parent
    cache = f"FILE:{base}/tickets"
    keytab = str(base / "hdfs.keytab")
    by_keytab = attempt(forked, secured, f"{secured.uri}/a", KRB5_CLIENT_KTNAME=keytab, KRB5CCNAME=cache)
    assert by_keytab.stdout == "secret of somebody 18\n", by_keytab.stderr
    by_ticket = attempt(forked, secured, f"{secured.uri}/b", KRB5CCNAME=cache)
    assert by_ticket.stdout == "secret of somebody 18\n", by_ticket.stderr


@pytest.mark.hadoop_full
def test_without_a_ticket_the_error_names_kerberos(secured: MiniHdfs, forked: Forks) -> None:
    refused = attempt(forked, secured, f"{secured.uri}/c")
    assert refused.code == 1
    assert re.search(r"StorageError: .*(?i:kerberos|gss|credential|ticket)", refused.stderr), refused.stderr


@pytest.mark.hadoop_full
def test_the_ticket_names_the_user_not_the_environment(secured: MiniHdfs, forked: Forks) -> None:
    """HADOOP_USER_NAME is no password: what only the superuser may do stays refused."""
    base = secured.conf_dir.parent
    refused = attempt(
        forked,
        secured,
        f"{secured.uri}/d",
        KRB5_CLIENT_KTNAME=str(base / "alice.keytab"),
        KRB5CCNAME=f"FILE:{base}/tickets-of-alice",
        HADOOP_USER_NAME="hdfs",
    )
    assert "Permission denied: user=alice" in refused.stderr
