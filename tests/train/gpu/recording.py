"""A stand-in for CUDA graphs on a CPU: what was launched, with the very memory and numbers of that moment.

A launch is an operation of torch, or a function of `reference` as a whole. A replay repeats the launches and
nothing around them. So it goes wrong where a graph would: where a step takes a number, a branch or an address
from Python that another step has otherwise.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from train.gpu import reference
from train.gpu.capture import Work
from train.gpu.fused_pass import FusedPass


class Launch(NamedTuple):
    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    result: Any
    beside: bool  # on the branch


class Recorder(TorchDispatchMode):
    """Stands for `capture_on(device)`, for the kernels and for the branch of a step.

    Attributes:
        captured: the launches of each capture.
        num_replays: replays so far.
        is_inside: whether a function of the reference runs now.
    """

    def __init__(self, fused: FusedPass, tables: Sequence[Tensor]) -> None:
        """`tables` are all that steps change, beside what `fused` has."""
        super().__init__()
        self.captured: list[list[Launch]] = []
        self.num_replays = 0
        self._launches: list[Launch] | None = None  # of the capture that is going on
        self.is_inside, self._beside = False, False
        step = fused.step
        own = [rows for each in set(step.operators) for rows in (each.values_SRD, each.sums_SRD)]
        self._state = [each for each in (*tables, *own, step.sums) if each is not None]
        fused.capture, step.branch = self.capture, self  # type: ignore[assignment]
        step.kernels = self  # type: ignore[assignment]

    def capture(self, work: Work) -> Work:
        """Record launches; leave the memory as it was."""
        before = [each.clone() for each in self._state]
        self._launches = launches = []
        with self:
            work()
        self._launches = None
        for each, old in zip(self._state, before, strict=True):
            each.copy_(old)
        self.captured.append(launches)
        return lambda: self._replay(launches)

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        result = function(*arguments, **(options or {}))
        if not self.is_inside:
            self._add(function.overloadpacket.__name__, function, arguments, options or {}, result)
        return result

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """A function of the reference, recorded as one launch."""
        function = getattr(reference, name)

        def launched(*arguments: Any) -> Any:
            self.is_inside = True
            result = function(*arguments)
            self.is_inside = False
            self._add(name, function, arguments, {}, result)
            return result

        launched.__name__ = name
        return launched

    @contextmanager
    def forked(self) -> Iterator[None]:
        self._beside = True
        yield
        self._beside = False

    def join(self) -> None:
        self._add("join", lambda: None, (), {}, None)

    def _add(self, name: str, function: Any, arguments: Any, options: Any, result: Any) -> None:
        if self._launches is not None:
            self._launches.append(Launch(name, function, arguments, options, result, self._beside))

    def _replay(self, launches: list[Launch]) -> None:
        """Repeat; launches of the branch come as late as a GPU may run them."""
        self.num_replays += 1
        self.is_inside = True
        late: list[Launch] = []
        for each in launches:
            if each.beside:
                late.append(each)
                continue
            if each.name == "join":
                for other in late:
                    _repeat(other)
                late = []
            _repeat(each)
        self.is_inside = False
        assert not late, "a branch that nothing joins"


def _repeat(launch: Launch) -> None:
    again = launch.function(*launch.arguments, **launch.options)
    for old, new in zip(tree_leaves(launch.result), tree_leaves(again), strict=True):
        if isinstance(old, Tensor) and old is not new:
            old.copy_(new)
