"""The formats of an export. To add one, write a module with a function `write`, and a line of `FORMATS`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

from graphmill.ask.export.codecs import PRECISIONS, Precision
from graphmill.ask.export.source import Source
from graphmill.storage import Checksums

_TEXT: tuple[Precision, ...] = ("float32", "float16")

Write = Callable[[Source, int, str], Checksums]


@dataclass(frozen=True)
class Format:
    """One format.

    Attributes:
        module: module with `write(source, partition, folder)`, which returns checksums of its files.
        names: pattern of the names of its files.
        is_whole: whether a type is one piece, not one for each partition.
        precisions: what it can hold.
        holds_scales: whether it can hold a scale of each row.
        others: names of the files for all types together, which `finish` of the module writes.
    """

    module: str
    names: str
    is_whole: bool = False
    precisions: tuple[Precision, ...] = PRECISIONS
    holds_scales: bool = True
    others: tuple[str, ...] = ()

    @property
    def write(self) -> Write:
        """The function that writes a piece."""
        found: Write = import_module(f"{__name__}.{self.module}").write
        return found

    def finish(self, folder: str, sources: Sequence[Source]) -> Checksums:
        """Write the files for all types together; return their checksums."""
        if not self.others:
            return {}
        found: Checksums = import_module(f"{__name__}.{self.module}").finish(folder, sources)
        return found


_PART = r"part-[0-9]{5,}"

FORMATS = {
    "parquet": Format("parquet", rf"{_PART}\.parquet"),
    "npy": Format("npy", rf"{_PART}(?:\.scale)?\.npy|{_PART}\.ids\.parquet"),
    "arrow": Format("arrow", rf"{_PART}\.arrow"),
    "faiss": Format("faiss_index", r"vectors\.faiss|ids\.parquet", is_whole=True, holds_scales=False),
    "word2vec": Format("word2vec", r"vectors\.txt", is_whole=True, precisions=_TEXT),
    "tensorboard-projector": Format(
        "projector",
        r"vectors\.tsv|metadata\.tsv",
        is_whole=True,
        precisions=_TEXT,
        others=("projector_config.json", "projector_config.pbtxt"),
    ),
}
