"""Steps of a run, in their order, and what they share: settings (`task_settings`), counts and the number of
partitions (`chunks`), intermediate files (`spill`) and their way to the next step (`exchange`), holdout
split, duplicates, ids and edges of an earlier run, ids that are gone.

    encode.py       1  raw rows -> ids and numbered edges, chunk by chunk (encode_rows)
    index.py        2  ids of all chunks -> the entity index (index_shard, index_previous)
    translate.py    3  numbered edges -> edges sorted by bucket, chunk by chunk
    merge.py        4  sorted edges of all chunks or an earlier run -> bucket files (bucket_rows, left_out)
"""
