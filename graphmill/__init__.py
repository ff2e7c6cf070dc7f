"""GraphMill: embeddings of graphs too big for one table, keyed by the string ids they came with."""

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING

from graphmill.version import __version__

if TYPE_CHECKING:
    from graphmill.library.run import Run

AnyPath = str | PathLike[str]

__all__ = ["__version__", "open"]


def open(uri: AnyPath, *, embedding_path: AnyPath | None = None, plugins: Sequence[AnyPath] = ()) -> "Run":
    """A finished run as an object: its settings, figures and metrics, and its embeddings by raw id.

    Args:
        uri: the run's `output`, local or on HDFS.
        embedding_path: the folder of the embeddings, where that lies elsewhere.
        plugins: files and modules of plug-ins that may run; those that run.json names do not, by themselves.
    """
    from graphmill.library.run import Run  # a worker that imports graphmill needs none of it

    return Run(str(uri), str(embedding_path) if embedding_path else None, list(map(str, plugins)))
