"""PyTorch-BigGraph's files from before its version 1: `.pt`, numbered from 1.

Modules: `checkpoint` (outdir), `inputs` (entityPath, edgePaths; the index base).
Source: docs/formats/pbg_legacy.md.
"""
