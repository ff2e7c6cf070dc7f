"""pyarrow as the workers of a job are to have it: what a fork server does before it forks them.

Nothing but the server imports this module.
"""

import sys
from typing import Any

import pyarrow as pa


class _NoPandas:
    """pyarrow looks for pandas when it first makes an array: a quarter of a second, where it is installed.

    No stage has a use for it. What pyarrow has not found then it does not look for again.
    """

    def find_spec(self, name: str, *places: Any) -> None:
        if name == "pandas":
            raise ImportError("not wanted")


_no_pandas: Any = _NoPandas()
sys.meta_path.insert(0, _no_pandas)
pa.array(["a", "b", "a"])
sys.meta_path.remove(_no_pandas)

# glibc's, which keeps what it is given back, as workers are told to: Arrow's own faults it in anew.
pa.set_memory_pool(pa.system_memory_pool())
