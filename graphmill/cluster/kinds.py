"""Kinds of cluster: the forms of `--master`, and the function that starts each kind.

To add a kind, write a module with a context manager `(master, settings, keys)` that yields what Dask's
Client connects to, and add a line to `KINDS`. Help texts and errors come from this table.
"""

import re
from dataclasses import dataclass

from graphmill.errors import ConfigError


@dataclass(frozen=True)
class Kind:
    """One kind of cluster.

    Attributes:
        forms: Values of `--master`, as help texts show them.
        pattern: Regular expression that matches the whole `--master`.
        starter: Module in this package and name of the context manager, imported when a run needs it. None:
            the cluster runs already, and keeps running afterwards.
        has_own_scheduler: The scheduler runs in this process.
        has_own_workers: The workers are of this machine and this installation.
        is_this_process: The workers are threads of this process.
    """

    forms: tuple[str, ...]
    pattern: str
    starter: str | None
    has_own_scheduler: bool = False
    has_own_workers: bool = False
    is_this_process: bool = False


_LOCAL = {"has_own_scheduler": True, "has_own_workers": True}
KINDS = (
    Kind(("local",), "local", "local:cluster_in_this_process", **_LOCAL, is_this_process=True),
    Kind(("local[N]", "local[*]"), r"local\[(\d*[1-9]\d*|\*)\]", "local:local_cluster", **_LOCAL),
    Kind(("cuda",), "cuda", "local:cuda_cluster", **_LOCAL),
    Kind(("yarn",), "yarn", "yarn:yarn_cluster", has_own_scheduler=True),
    Kind(("ssh://HOST,HOST",), "ssh://.*", "ssh:ssh_cluster"),
    Kind(("tcp://HOST:PORT", "tls://HOST:PORT"), "(tcp|tls)://.*", None),
)

_FORMS = [form for kind in KINDS for form in kind.forms]
FORMS = f"{', '.join(_FORMS[:-1])} or {_FORMS[-1]}"


def is_of_this_machine(master: object) -> bool:
    """Whether workers and scheduler of `master` are of this machine."""
    patterns = [kind.pattern for kind in KINDS if kind.has_own_workers]
    return isinstance(master, str) and any(re.fullmatch(each, master) for each in patterns)


def kind_of(master: str) -> Kind:
    """Find the kind of cluster that `master` names.

    Raises:
        ConfigError: `master` has no known form.
    """
    for kind in KINDS:
        if re.fullmatch(kind.pattern, master):
            return kind
    raise ConfigError(f"--master {master}: expected {FORMS}")
