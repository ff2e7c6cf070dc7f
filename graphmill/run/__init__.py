"""One run: run.json (`record`), skipping finished stages by `fingerprints`, locks, `--date` and
retention, a result that a killed command goes on with (`work`), what a checkpoint was trained with,
values that wait for the data (`auto_values`), what run.json says to people (`reading`).
"""
