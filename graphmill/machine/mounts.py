"""Which local folders other machines can see."""

import os
from pathlib import Path

# Types of file systems that one machine alone can see; all others count as shared (NFS, Lustre, CephFS, ...).
_OF_ONE_MACHINE = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "jfs", "tmpfs", "ramfs", "overlay"}


def is_of_one_machine(path: str) -> bool:
    """Tell whether a local path, which need not exist, lies on a disk of this machine alone."""
    place = os.path.realpath(path) + "/"
    found, longest = "", 0
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        mount = fields.split()[4].replace("\\040", " ").rstrip("/") + "/"
        if place.startswith(mount) and len(mount) >= longest:  # a later mount covers an earlier one
            found, longest = rest.split()[0], len(mount)
    return found in _OF_ONE_MACHINE
