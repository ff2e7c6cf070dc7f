"""Kinds of cluster: the forms of `--master`.

To add a kind, add a line to `KINDS`, write a module in graphmill/cluster with a context manager `(master,
settings, keys)` that yields what Dask's Client connects to, and add it to `STARTERS` of
`graphmill.cluster.connecting`. Help texts and errors come from this table.
"""

import re
from dataclasses import dataclass

from graphmill.errors import ConfigError


@dataclass(frozen=True)
class Kind:
    """One kind of cluster."""

    name: str
    forms: tuple[str, ...]  # values of `--master`, as help texts show them
    pattern: str  # regular expression that matches the whole `--master`
    has_own_scheduler: bool = False  # the scheduler runs in this process
    has_own_workers: bool = False  # the workers are of this machine and this installation
    is_this_process: bool = False  # the workers are threads of this process


_LOCAL = {"has_own_scheduler": True, "has_own_workers": True}
KINDS = (
    Kind("here", ("local",), "local", **_LOCAL, is_this_process=True),
    Kind("local", ("local[N]", "local[*]"), r"local\[(\d*[1-9]\d*|\*)\]", **_LOCAL),
    Kind("cuda", ("cuda",), "cuda", **_LOCAL),
    Kind("yarn", ("yarn",), "yarn", has_own_scheduler=True),
    Kind("ssh", ("ssh://HOST,HOST",), "ssh://.*"),
    Kind("running", ("tcp://HOST:PORT", "tls://HOST:PORT"), "(tcp|tls)://.*"),
)

_FORMS = [form for kind in KINDS for form in kind.forms]
FORMS = f"{', '.join(_FORMS[:-1])} or {_FORMS[-1]}"


def is_of_this_machine(master: object) -> bool:
    """Tell whether workers and scheduler of `master` are of this machine."""
    patterns = [kind.pattern for kind in KINDS if kind.has_own_workers]
    return isinstance(master, str) and any(re.fullmatch(pattern, master) for pattern in patterns)


def kind_of(master: str) -> Kind:
    """Find the kind of cluster that `master` names."""
    for kind in KINDS:
        if re.fullmatch(kind.pattern, master):
            return kind
    raise ConfigError(f"--master {master}: expected {FORMS}")
