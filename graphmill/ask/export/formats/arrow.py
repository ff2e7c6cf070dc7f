"""Arrow IPC: one file for each partition, {type}/part-{partition:05d}.arrow; readers map it into memory."""

import pyarrow as pa

from graphmill import storage
from graphmill.ask.export.formats.columns import ID, columns, fields
from graphmill.ask.export.source import Source
from graphmill.storage import Checksums


def write(source: Source, partition: int, folder: str) -> Checksums:
    """Write a partition; return the checksum of its file."""
    checksums: Checksums = {}
    uri = storage.join(folder, source.entity_type, f"part-{partition:05d}.arrow")
    schema = pa.schema([ID, *fields(source.codec, as_arrow=True)])
    with (
        storage.atomic_output(uri, is_large=True, checksums=checksums) as stream,
        pa.ipc.new_file(stream, schema) as file,
    ):
        for ids, encoded in source.batches(partition):
            rows = [ids.cast(pa.string()), *columns(encoded, schema)]
            file.write_batch(pa.record_batch(rows, schema=schema))
    return checksums
