"""Storage by URI: local disks, HDFS and the other file systems of pyarrow; patterns (`named`), atomic
writes, checksums, temporary files, secrets in URIs (`redaction`).
"""

from graphmill.storage.atomic import (
    MARKER,
    atomic_directory,
    atomic_output,
    create_text,
    delete_marker,
    discarded_on_error,
    is_moved_aside,
    move_aside,
    moved_aside,
    name_aside,
    read_marker,
    recover,
    replace_directory,
    sweep,
    temporary_sibling,
    write_checksums,
    write_json,
    write_marker,
    write_text,
)
from graphmill.storage.checksums import (
    CHECKSUMS,
    PUBLISHED,
    ChecksumManifest,
    Checksums,
    manifest_of,
    manifest_of_table,
    open_compared,
    published_manifest,
    read_checksums,
)
from graphmill.storage.checksums import read_bytes as read_compared
from graphmill.storage.filesystems import filesystem
from graphmill.storage.fs import (
    MAX_TEXT_BYTES,
    FileStatus,
    check_moves_folders,
    copy_file,
    delete,
    delete_file,
    exists,
    is_dir,
    json_in,
    links_below,
    list_dir,
    list_hidden,
    make_dir,
    move,
    open_input,
    open_output,
    read_bytes,
    read_if_there,
    read_json,
    read_text,
    replicate,
    replicates,
    resolved,
    status,
)
from graphmill.storage.named import file_name, files_at, matches, split_pattern
from graphmill.storage.staging import create_hdf5, open_hdf5
from graphmill.storage.uri import (
    absolute,
    contains,
    is_absolute,
    is_local,
    join,
    local_path,
    name,
    parent,
    path_below,
    within,
)
