"""A secured HDFS: Kerberos by keytab and by ticket cache, everything on the wire encrypted."""

import re
from collections.abc import Iterator
from ctypes.util import find_library

import pytest

from tests.forked import Ended, Forks
from tests.hadoop.cluster import MiniHdfs
from tests.hadoop.fixture import hadoop

pytestmark = pytest.mark.hdfs

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
    if find_library("gssapi_krb5") is None:
        pytest.skip("no libgssapi_krb5, which hdfs-native loads for Kerberos; install libgssapi-krb5-2")
    with hadoop(settings=SETTINGS) as cluster:
        yield cluster


def attempt(forked: Forks, cluster: MiniHdfs, uri: str, code: int = 0, **variables: str) -> Ended:
    base = cluster.conf_dir.parent
    environment = {
        "HADOOP_CONF_DIR": str(cluster.conf_dir),
        "KRB5_CONFIG": f"{base}/krb5.conf",
        "KRB5CCNAME": f"FILE:{base}/none",
    }
    return forked("python", "-c", SCRIPT, uri, "somebody", code=code, **environment | variables)


def test_a_keytab_lets_in_and_so_does_its_ticket(secured: MiniHdfs, forked: Forks) -> None:
    base = secured.conf_dir.parent
    ticket = {"KRB5CCNAME": f"FILE:{base}/tickets"}
    keytab = {"KRB5_CLIENT_KTNAME": str(base / "hdfs.keytab")}
    for name, variables in (("a", keytab | ticket), ("b", ticket)):
        ended = attempt(forked, secured, f"{secured.uri}/{name}", **variables)
        assert ended.stdout == "secret of somebody 18\n", ended.stderr


@pytest.mark.hadoop_full
def test_without_a_ticket_the_error_names_kerberos(secured: MiniHdfs, forked: Forks) -> None:
    refused = attempt(forked, secured, f"{secured.uri}/c", code=1)
    assert re.search(r"StorageError: .*(?i:kerberos|gss|credential|ticket)", refused.stderr), refused.stderr


@pytest.mark.hadoop_full
def test_the_ticket_names_the_user_not_the_environment(secured: MiniHdfs, forked: Forks) -> None:
    """HADOOP_USER_NAME is no password: what only the superuser may do stays refused."""
    base = secured.conf_dir.parent
    refused = attempt(
        forked,
        secured,
        f"{secured.uri}/d",
        code=1,
        KRB5_CLIENT_KTNAME=str(base / "alice.keytab"),
        KRB5CCNAME=f"FILE:{base}/tickets-of-alice",
        HADOOP_USER_NAME="hdfs",
    )
    assert re.search(r"AccessError: .* Permission denied: user=alice", refused.stderr)
