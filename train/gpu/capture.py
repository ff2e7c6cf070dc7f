"""Capture of a step as a CUDA graph, and a branch of launches within a step.

Nothing here computes; only a GPU has graphs and streams. Elsewhere a branch does nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

Work = Callable[[], None]
Capture = Callable[[Work], Work]  # takes launches, and returns what repeats them


class Branch:
    """Launches beside the others of a step: on a stream that forks from theirs, and joins it again."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    @contextmanager
    def forked(self) -> Iterator[None]:
        """Launch on the branch, after all launches so far."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """Make future launches wait for the branch; memory that the branch reads must live until then."""
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)


class Captured:
    """Work that is done directly at first, captured when it comes again, and replayed from then on."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._has_come = False
        self._replay: Work | None = None

    def __call__(self, work: Work) -> None:
        """Do `work`, which is the same each time; the first time compiles and allocates."""
        if self._has_come and self._replay is None:
            self._replay = self._capture(work)
        self._has_come = True
        (self._replay or work)()


def capture_on(device: torch.device) -> Capture | None:
    """Return a function that captures launches on a GPU; None elsewhere.

    A capture waits for nothing and computes nothing. All graphs share one memory pool: they run one after the
    other, and none reads what another has left there.
    """
    if device.type != "cuda":
        return None
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # the default stream cannot capture
    pool = torch.cuda.graph_pool_handle()

    def capture(work: Work) -> Work:
        graph = torch.cuda.CUDAGraph()
        # Not torch.cuda.graph(), which waits for the device and empties its cache.
        with torch.cuda.stream(stream):
            # Other threads may copy edges meanwhile.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
        return graph.replay

    return capture
