"""Links to version files: PBG preserves an epoch as a folder of links; we use copies or hard links.

    checkpoint_path/
      embeddings_user_0.v2.h5
      epoch_2/embeddings_user_0.v2.h5 -> /where/it/was/checkpoint/embeddings_user_0.v2.h5

The name of the target identifies the file: in a checkpoint that was moved, the link is broken, and the
file of that name beside the folder is still the right one.
"""

import os
import shutil
from collections.abc import Iterable

from graphmill import storage
from graphmill.formats.pbg_checkpoint.names import VERSIONED

_COPY_BYTES = 8 << 20

Links = dict[str, list[str]]


def links_of(checkpoint_path: str) -> Links:
    """Version files that are targets of links below the folder: their names, each with its links."""
    links: Links = {}
    for link, target in storage.links_below(checkpoint_path).items():
        if VERSIONED.match(storage.name(target)):
            links.setdefault(storage.name(target), []).append(link)
    return links


def make_own(checkpoint_path: str, links: Iterable[str]) -> None:
    """Replace links to version files of the folder, and broken links, by the files themselves."""
    for link in links:
        target = storage.join(checkpoint_path, storage.name(storage.resolved(link)))
        is_broken = not storage.exists(link)
        if storage.exists(target) and (is_broken or storage.resolved(link) == storage.resolved(target)):
            storage.sweep(storage.parent(link))
            temporary = storage.temporary_sibling(link)
            link_or_copy(target, temporary)
            storage.move(temporary, link)


def link_or_copy(source: str, target: str) -> None:
    """Make a second name for a file that never changes, or a copy where there are no hard links."""
    source_path, target_path = storage.local_path(storage.resolved(source)), storage.local_path(target)
    if source_path and target_path:
        try:
            os.link(source_path, target_path)
        except OSError:  # a file system without hard links
            pass
        else:
            return
    with storage.open_input(source) as reader, storage.atomic_output(target) as writer:
        shutil.copyfileobj(reader, writer, _COPY_BYTES)
