"""The folder of each split, where `edge_paths` name folders of PBG's: train, then others.

PBG has edge paths only, in folders of any name:

    data/FB15k/freebase_mtr100_mte100-train_partitioned     train
    data/FB15k/freebase_mtr100_mte100-test_partitioned      test
"""

import posixpath
import re
from collections.abc import Sequence

from graphmill import storage
from graphmill.vocab import TRAIN_SPLIT


def folder_of(split: str, edge_paths: Sequence[str], edge_root: str) -> str:
    """Return the folder of the bucket files of `split`.

    That is the edge path of this name, else the only one of several with this word in its name; for train,
    the first; else the folder of this name in `edge_root`.
    """
    names = dict(zip(edge_paths, names_of(edge_paths), strict=True))
    named = [path for path in edge_paths if split in (names[path], storage.name(path))]
    if not named and len(edge_paths) > 1:
        named = [path for path in edge_paths if split in re.split(r"[^A-Za-z0-9]+", names[path])]
    if len(named) == 1:
        return named[0]
    return edge_paths[0] if split == TRAIN_SPLIT else storage.join(edge_root, split)


def names_of(edge_paths: Sequence[str]) -> list[str]:
    """Name each edge path, as a split: by the part of its path that tells it from the others."""
    folders = [posixpath.normpath(path) for path in edge_paths]
    if len(set(folders)) > 1 and len(set(map(posixpath.isabs, folders))) == 1:
        above = posixpath.commonpath([storage.parent(folder) for folder in folders])
        places = [posixpath.relpath(folder, above) for folder in folders]
    else:
        places = [storage.name(folder) for folder in folders]
    return [re.sub(r"[^\w-]+", "-", place).strip("-") for place in places]
