"""`.pt` files: checked before memory is taken, read in place, and written row by row.

torch.save() has written two forms. Both are read; the older one is written, because every torch reads it
and because it can be streamed.

    since torch 1.6   an uncompressed zip: `data.pkl` describes the tensors, `data/{key}` holds the elements
                      of one storage
    before            pickles: magic number, protocol, system, content, keys of the storages; then the
                      storages in the order of the keys: int64 number of elements, the elements

Nothing is executed: torch's unpickler for weights (`weights_only=True`) builds tensors and plain values
only, and any other type is refused by its name.

`stored` and `tensor` do not import torch, which takes 2 s and 600 MB per process.
"""
