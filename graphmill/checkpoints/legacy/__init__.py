"""PyTorch-BigGraph's files from before its version 1: `.pt`, numbered from 1.

    entityPath/
      entity_count_{type}_{part}.pt     torch.save(int)
      dynamic_rel_count.pt              torch.save(int)
    each of edgePaths/
      edges_{lhs}_{rhs}.h5              as v1, without format_version, indices from 1
    outdir/, loadPath/
      {type}_{part}.pt.{V}              torch.save((embeddings [count, D], optimizer's state or None))
      METADATA_1.pt.{V}                 torch.save((config, edge paths, chunk, model, optimizer's state))
      CHECKPOINT_VERSION                V; version 0 means no suffix

Modules: `checkpoint` (outdir), `inputs` (entityPath, edgePaths; the index base).
Source: docs/formats/pbg_legacy.md.
"""
