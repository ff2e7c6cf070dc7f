"""The formats of an export (parquet, npy, Arrow, faiss, word2vec, projector). To add one, write a function
that writes a partition, and a line of `FORMATS`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from graphmill.ask.export.codecs import PRECISIONS
from graphmill.ask.export.fitting import Source
from graphmill.ask.export.formats import faiss_index, tables, text
from graphmill.ask.export.settings import Precision
from graphmill.storage import Checksums

_TEXT: tuple[Precision, ...] = ("float32", "float16")

Write = Callable[[Source, int, str], Checksums]
Finish = Callable[[str, Sequence[Source]], Checksums]


@dataclass(frozen=True)
class Format:
    """One format.

    Attributes:
        write: writes a partition of a source to a folder; returns checksums of its files.
        names: pattern of the names of its files.
        is_whole: whether a type is one piece, not one for each partition.
        precisions: what it can hold.
        holds_scales: whether it can hold a scale of each row.
        others: names of the files for all types together, which `finish` writes.
        finish: writes the files for all types together, if there are any; returns their checksums.
    """

    write: Write
    names: str
    is_whole: bool = False
    precisions: tuple[Precision, ...] = PRECISIONS
    holds_scales: bool = True
    others: tuple[str, ...] = ()
    finish: Finish | None = None


_PART = r"part-[0-9]{5,}"

FORMATS = {
    "parquet": Format(tables.write_parquet, rf"{_PART}\.parquet"),
    "npy": Format(tables.write_npy, rf"{_PART}(?:\.scale)?\.npy|{_PART}\.ids\.parquet"),
    "arrow": Format(tables.write_arrow, rf"{_PART}\.arrow"),
    "faiss": Format(faiss_index.write, r"vectors\.faiss|ids\.parquet", is_whole=True, holds_scales=False),
    "word2vec": Format(text.write_word2vec, r"vectors\.txt", is_whole=True, precisions=_TEXT),
    "tensorboard-projector": Format(
        text.write_projector,
        r"vectors\.tsv|metadata\.tsv",
        is_whole=True,
        precisions=_TEXT,
        others=("projector_config.json", "projector_config.pbtxt"),
        finish=text.finish_projector,
    ),
}
