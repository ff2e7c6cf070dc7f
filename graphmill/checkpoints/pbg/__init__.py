"""PBG v1 checkpoints: embeddings, relation parameters and optimizer states, one version at a time.

Protocol: write the embeddings of version V, the model, the stats, then `commit`. Every file appears
whole (temporary name, rename), and only checkpoint_version.txt commits a version, so a kill at any
point leaves the old version or the new one. The same content gives the same bytes.

Modules: `versions` (names, text files, commits), `tables` (HDF5). Source: docs/formats/pbg_v1.md.
"""

from graphmill.checkpoints.checkpoint import Iteration
from graphmill.checkpoints.pbg.tables import (
    open_embeddings,
    read_embeddings,
    read_model,
    read_model_iteration,
    read_optimizer_state,
    read_parameters,
    write_embeddings,
    write_model,
)
from graphmill.checkpoints.pbg.versions import (
    STATS_FILE,
    VERSION_FILE,
    append_stats,
    commit,
    complete_versions,
    delete_uncommitted,
    embeddings_uri,
    epoch_path,
    keep,
    model_uri,
    move_aside,
    num_partitions,
    read_config,
    read_stats,
    read_version,
    restore,
    version_checksum,
    versions_of,
    write_config,
)
