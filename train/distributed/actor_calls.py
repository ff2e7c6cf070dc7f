"""Calls of an actor's methods from worker to worker, which end when the actor's worker is lost.

Dask's own `Actor` waits without end there: it awaits a future of the actor that nobody completes.
"""

import asyncio
from typing import Any

from distributed import Worker
from distributed.protocol import to_serialize


def call(worker: Worker, address: str, actor: str, method: str, *arguments: Any) -> Any:
    """The result of a method of the actor with the key `actor`; any thread but the event loop's may call.

    Raises:
        OSError: the actor's worker is gone.
        KeyError: the worker has no such actor.
    """

    async def ask() -> Any:
        serialized = [to_serialize(each) for each in arguments]
        return await worker.rpc(address).actor_execute(function=method, actor=actor, args=serialized)

    answer = asyncio.run_coroutine_threadsafe(ask(), worker.loop.asyncio_loop).result()
    if answer["status"] != "OK":
        raise answer["exception"]
    return answer["result"]
