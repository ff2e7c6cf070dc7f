"""RecIS' safetensors checkpoints: tables of rows by (hashed) id, divided into shards, and dense tensors.

    checkpoint/
      model-000000-of-000002.safetensors    blocks; numbered from 0 on, without gaps
      tensorkey.json                        which slice of which table a block is
      torch_rank_weights_embs_table_multi_shard.json    one entry per embedding block or dense tensor
      index                                 which block lies in which file; written last

Modules: `saver`, `reader`, `layout` (names, owners, JSON files), `safetensors`; docs/formats/recis.md.
"""

from graphmill.checkpoints.recis.layout import Slice, UnknownTensorError, hash_slot, newest, slice_of
from graphmill.checkpoints.recis.reader import CheckpointReader, Loader
from graphmill.checkpoints.recis.safetensors import StoredRows
from graphmill.checkpoints.recis.saver import HashTable, Saver, WriteBlock
