"""Ports of a group's members while they reduce; a stranger who connects to them is refused."""

import os
import socket
import ssl
from contextlib import suppress

import pytest
import torch
from distributed import Variable

from graphmill import cluster
from graphmill.cluster import ClusterConfig
from graphmill.cluster.keys import new_keys
from graphmill.errors import ConfigError
from tests.graphmill.cluster import stranger
from train.distributed.collective import OPENSSL, Collective, check_openssl
from train.distributed.messages import ReduceGroup


def member(rank: int, name: str) -> list[list[float]]:
    """Reduce, tell what is listened on, reduce again when told so; twice, in two groups."""
    sums = []
    collective = Collective("gloo", torch.device("cpu"))
    before = stranger.listening([os.getpid()])
    for number in range(2):
        group = ReduceGroup(name=f"{name}-{number}", rank=rank, size=2, leader=0)
        sums += collective.sum([torch.ones(2) * (rank + 1)], group)
        found = [each for each in stranger.listening([os.getpid()]) if each not in before]
        Variable(f"{name}-{number}-{rank}").set(found)
        Variable(f"{name}-{number}-go").get(timeout=600)
        sums += collective.sum([torch.ones(2) * (rank + 3)], group)
    collective.close()
    return [each.tolist() for each in sums]


def knock(ip: str, port: int) -> bytes:
    """The answer to a process without the key, by plain TCP and by TLS, within half a second."""
    answer = b""
    with socket.create_connection((ip, port), timeout=60) as plain, suppress(OSError):
        plain.settimeout(0.5)
        plain.sendall(b"\0" * 64)
        answer += plain.recv(1)
    context = ssl.create_default_context(cadata=new_keys().ca)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with suppress(OSError), context.wrap_socket(socket.create_connection((ip, port), timeout=0.5)) as tls:
        tls.sendall(b"\0" * 64)
        answer += tls.recv(1)
    return answer


def has_openssl() -> bool:
    with suppress(ConfigError):
        check_openssl(OPENSSL)
        return True
    return False


def test_where_gloo_cannot_encrypt_it_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"finds none on this worker's machine: libnone\.so; install"):
        check_openssl(["libnone.so"])


@pytest.mark.slow
@pytest.mark.skipif(not has_openssl(), reason="no libssl.so: install libssl-dev")
def test_a_group_is_for_its_members() -> None:
    with cluster.connect("local[2]", ClusterConfig()) as client:
        workers = sorted(cluster.worker_addresses(client))
        futures = [client.submit(member, rank, "group", workers=[each]) for rank, each in enumerate(workers)]
        for number in range(2):
            for rank in range(2):
                ((ip, port),) = Variable(f"group-{number}-{rank}", client).get(timeout=600)
                assert ip == "127.0.0.1"
                assert knock(ip, port) == b""
            Variable(f"group-{number}-go", client).set(True)
        assert client.gather(futures) == [[[3.0, 3.0], [7.0, 7.0]] * 2] * 2
