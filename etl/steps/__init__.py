"""Steps of a run, in their order, and what they share: number of partitions (`chunks`), holdout split,
duplicates, spill files, ids and edges of an earlier run, ids that are gone:

    encode.py       1  raw rows -> ids and numbered edges, chunk by chunk (encode_rows)
    index.py        2  ids of all chunks -> the entity index (index_shard, index_previous)
    translate.py    3  numbered edges -> edges sorted by bucket, chunk by chunk
    merge.py        4  sorted edges of all chunks or an earlier run -> bucket files (bucket_rows, left_out)

All steps share task_settings.py (settings of a run), chunks.py (names and counts), spill.py (intermediate
files, and values that all tasks of a step read) and exchange.py (how these files get from the tasks of one
step to those of the next).
"""
