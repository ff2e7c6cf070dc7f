"""Top-K in bulk: `graphmill predict` for all users of a made-up run, and faiss alone on the same lists.

A vector is the mean of its group and subgroup, and noise; few directions have much spread. A subgroup has
fewer rows than an answer, and a group more than a list: as in trained vectors, the best of an id lie in many
subgroups and lists. With subgroups larger than K, few lists hold all answers, and any search looks good.

faiss's program reads the lists that `predict` has made, and compares as many of them. It writes numbers, and
then again raw ids in parquet, as `predict` does.

The same lists then answer without the known edges, KNOWN of each user; and l2 answers from nothing.
"""

import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench import measure
from bench.pbg import REPOSITORY
from bench.report import Report
from bench.setting import Setting
from graphmill import config as configuration
from graphmill import storage
from graphmill.checkpoints import pbg
from graphmill.checkpoints.pbg import Iteration
from graphmill.config import Config
from graphmill.formats import edge_buckets, entity_counts, entity_index
from graphmill.formats.edge_buckets import Edges
from graphmill.formats.entity_index import Manifest
from graphmill.vocab import Bucket

DIMENSION, K, RECALL = 100, 100, 0.95
QUERIES_PER_CANDIDATE = 0.1
PARTITION_ROWS = 1_000_000
SUBGROUP_ROWS, SUBGROUPS = K // 5, 2000
COMPARED = 1000
KNOWN = 50
_AT = Iteration(1, 0, 1, 0, "edges", 1, 0)


def run(setting: Setting) -> Report:
    """Answer for all users with `predict`, then with faiss on the lists that it has made."""
    num_items = setting.num_rows or 1_000_000
    num_users = max(1, int(num_items * QUERIES_PER_CANDIDATE))
    title = f"{K} best of {num_items:,} for {num_users:,} ids, D={DIMENSION}, {setting.num_workers} cores"
    report = Report("topk", title)
    source = setting.graphs / f"topk-{num_items}"
    if not (source / "run.json").exists():
        _make(source, num_users, num_items)
    with setting.run_folder("topk") as folder:
        whole, figures = _predict(setting, source, folder / "out", folder / "index")
        _add(report, "ours, from nothing", whole, figures)
        if setting.peers:
            peer, found = _faiss(setting, source, folder, int(figures["num_probed"]))
            numbers_s = sum(found[each] for each in ("load_s", "search_s", "write_s"))
            report.add("faiss alone, same lists", answers_s=numbers_s, search_s=found["search_s"])
            report.add(
                "faiss, and raw ids in parquet",
                answers_s=numbers_s + found["ids_s"],
                search_s=found["search_s"],
                **peer.figures(),
            )
            ours_s = _said(whole, "answers")
            report.ratio("answers of ours that are faiss's too", _agreement(folder, num_items))
            report.ratio("ours / faiss, which writes numbers", ours_s / numbers_s, "<= 1.2")
            report.ratio("ours / faiss, which writes raw ids too", ours_s / (numbers_s + found["ids_s"]))
        known, found = _predict(setting, source, folder / "new", folder / "index", "--exclude-known")
        _add(report, f"ours, same lists, without {KNOWN} known edges of each id", known, found)
        report.ratio("without known edges / with them", _said(known, "answers") / _said(whole, "answers"))
        shutil.rmtree(folder / "index")
        l2, l2_figures = _predict(setting, source / "l2", folder / "l2", folder / "index")
        _add(report, "ours, l2, from nothing", l2, l2_figures)
    for what, each in (("", figures), (", without known edges", found), (", l2", l2_figures)):
        report.ratio(f"recall@{K} on a sample{what}", float(each["recall"]), f">= {RECALL}")
    report.notes.append(
        "answers_s: raw ids, ranks and scores in parquet; of faiss alone: numbers and scores in npy"
    )
    return report


def _add(report: Report, what: str, whole: measure.Measured, figures: Mapping[str, float]) -> None:
    report.add(
        what,
        lists_s=_said(whole, "lists"),
        answers_s=_said(whole, "answers"),
        **whole.figures(),
        worker_peak_bytes=whole.worker_peak_bytes,
        num_lists=int(figures["num_lists"]),
        lists_compared=int(figures["num_probed"]),
    )


def _predict(
    setting: Setting, source: Path, out: Path, index: Path, *more: str
) -> tuple[measure.Measured, dict[str, float]]:
    command: list[str | Path] = ["predict", source, "--relation", "likes", "--k", str(K), "--to", out]
    command += ["--approximate", "--recall", str(RECALL), "--index", index, "--task-memory", "2GiB"]
    measured = setting.graphmill(*command, *more)
    return measured, json.loads((out / "_predict.json").read_text())


def _said(measured: measure.Measured, what: str) -> float:
    """Seconds of a part, from the log."""
    found = re.search(rf"\d+ {what} in ([0-9.]+) s", measured.stderr)
    return float(found[1]) if found else float("nan")


def _faiss(
    setting: Setting, source: Path, folder: Path, num_probed: int
) -> tuple[measure.Measured, dict[str, float]]:
    command: list[str | Path] = [sys.executable, "-m", "bench.topk_faiss", folder / "index", source, str(K)]
    environment = {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": str(setting.num_workers)}
    measured = measure.run([*command, str(num_probed), folder], cwd=REPOSITORY, environment=environment)
    return measured, json.loads(measured.stdout.splitlines()[-1])


def _agreement(folder: Path, num_items: int) -> float:
    """The share of our answers for some users that are faiss's too."""
    first = pq.ParquetFile(folder / "out/part-00000.parquet").read_row_group(0).slice(0, COMPARED * K)
    ours = np.array([int(each) for each in pc.utf8_slice_codeunits(first["candidate"], 5).to_pylist()])
    user = np.array([int(each) for each in pc.utf8_slice_codeunits(first["id"], 5).to_pylist()])
    theirs = np.load(folder / "numbers.npy", mmap_mode="r")[: user.max() + 1]
    rows = np.repeat(np.arange(len(theirs)), theirs.shape[1])
    return float(np.isin(user * num_items + ours, rows * num_items + theirs.reshape(-1)).mean())


def _make(source: Path, num_users: int, num_items: int) -> None:
    """Write a run with random vectors in groups, and random edges; another run.json takes them for l2."""
    counts = {"user": _cut(num_users), "item": _cut(num_items)}
    config = configuration.from_mapping(
        {
            "output": str(source),
            "entities": {name: {"num_partitions": len(each)} for name, each in counts.items()},
            "relations": [{"name": "likes", "lhs": "user", "rhs": "item", "operator": "none"}],
            "dimension": DIMENSION,
            "comparator": "dot",
        }
    )
    vectors = _vectors(max(1, num_items // SUBGROUP_ROWS))
    for name, each in counts.items():
        for partition, count in enumerate(each):
            _write(config, name, partition, count, sum(each[:partition]), next_rows(vectors, count))
    num_partitions = {name: len(each) for name, each in counts.items()}
    entity_index.write_manifest(config.entity_path, Manifest("blake2b", 0, num_partitions))
    pbg.write_model(config.checkpoint_path, 1, {}, None, config.pbg(), _AT)
    pbg.commit(config.checkpoint_path, 1, preserve_epoch=None)
    _write_edges(config.edge_paths[0], counts["user"], counts["item"])
    for output, comparator in ((source / "l2", "l2"), (source, "dot")):
        own = config.model_dump(mode="json") | {"output": str(output), "comparator": comparator}
        storage.write_text(f"{output}/run.json", json.dumps({"config": own, "stages": {}}))


def _write_edges(folder: str, num_users: list[int], num_items: list[int]) -> None:
    """Write KNOWN edges of each user, to random items of all partitions."""
    rng = np.random.default_rng(12)
    for bucket in (Bucket(*each) for each in np.ndindex(len(num_users), len(num_items))):
        users, items = num_users[bucket.lhs], num_items[bucket.rhs]
        num_edges = users * KNOWN // len(num_items)
        lhs, rhs = (rng.integers(0, count, num_edges, np.int32) for count in (users, items))
        edge_buckets.write_bucket(folder, bucket, Edges(lhs, np.zeros(num_edges, np.int32), rhs))


def _cut(num_rows: int) -> list[int]:
    num_partitions = -(-num_rows // PARTITION_ROWS)
    return [len(each) for each in np.array_split(np.empty(num_rows, np.int8), num_partitions)]


def _vectors(num_subgroups: int) -> Iterator[np.ndarray]:
    """Blocks of vectors, of 10,000 each."""
    rng = np.random.default_rng(11)
    spread_D = 1 / np.sqrt(1 + np.arange(DIMENSION, dtype=np.float32) / 8)
    groups = rng.standard_normal((max(1, num_subgroups // SUBGROUPS), DIMENSION), np.float32)
    means = groups[rng.integers(0, len(groups), num_subgroups)]
    means += 0.7 * rng.standard_normal(means.shape, np.float32)
    while True:
        own = means[rng.integers(0, num_subgroups, 10_000)]
        yield (own + 0.7 * rng.standard_normal(own.shape, np.float32)) * spread_D


def next_rows(vectors: Iterator[np.ndarray], count: int) -> np.ndarray:
    """The next vectors, [count, D]."""
    found = [next(vectors) for _ in range(-(-count // 10_000))]
    return np.concatenate(found)[:count]


def _write(config: Config, name: str, partition: int, count: int, first: int, rows: np.ndarray) -> None:
    entity_counts.write_count(config.entity_path, name, partition, count)
    with entity_index.new_part(config.entity_path, name, partition) as writer:
        for start in range(first, first + count, 1 << 16):
            stop = min(start + (1 << 16), first + count)
            digits = pc.utf8_lpad(pa.array(range(start, stop)).cast(pa.string()), 10, "0")
            writer.append(pc.binary_join_element_wise(f"{name}-"[:5], digits, ""))
    pbg.write_embeddings(config.checkpoint_path, name, partition, 1, rows, None, {}, _AT)
