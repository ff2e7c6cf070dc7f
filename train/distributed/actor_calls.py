"""Calls of an actor's methods from worker to worker, which end when the actor's worker is lost.

Dask's own `Actor` waits without end there: it awaits a future of the actor that nobody completes.
"""

import asyncio
from typing import Any

from distributed import Worker
from distributed.core import send_recv
from distributed.protocol import to_serialize

CONNECT_S = 5.0  # Dask knocks at a lost worker's door for 30 s, and others would wait with it


def call(worker: Worker, address: str, actor: str, method: str, *arguments: Any) -> Any:
    """The result of a method of the actor with the key `actor`; any thread but the event loop's may call."""

    async def ask() -> Any:
        serialized = [to_serialize(argument) for argument in arguments]
        comm = await worker.rpc.connect(address, timeout=CONNECT_S)
        try:
            return await send_recv(comm, op="actor_execute", function=method, actor=actor, args=serialized)
        finally:
            worker.rpc.reuse(address, comm)

    answer = asyncio.run_coroutine_threadsafe(ask(), worker.loop.asyncio_loop).result()
    if answer["status"] != "OK":
        raise answer["exception"]
    return answer["result"]
