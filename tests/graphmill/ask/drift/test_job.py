"""The stage drift on embeddings and edges of two runs, local and on HDFS."""

import json

import numpy as np
import pyarrow as pa
import pytest

from graphmill import config, storage
from graphmill.ask.drift import job
from graphmill.errors import BadInputError, ConfigError, DriftError, FormatError
from graphmill.formats import edge_buckets, remapped
from graphmill.formats.edge_buckets import Edges
from graphmill.vocab import Bucket
from tests.remap import graph

COUNTS = {"user": (8, 6), "item": (5,)}
RELATIONS = [
    {"name": "likes", "lhs": "user", "rhs": "item"},
    {"name": "follows", "lhs": "user", "rhs": "user"},
]


def configured(output, **drift):
    return config.from_mapping(
        {
            "output": output,
            "entities": {name: {"num_partitions": len(each)} for name, each in COUNTS.items()},
            "relations": RELATIONS,
            "dimension": graph.DIMENSION,
            "drift": drift,
        }
    )


def write_embeddings(folder, change=lambda name, part, rows: rows):
    for name, counts in COUNTS.items():
        for part, count in enumerate(counts):
            ids = [graph.raw_id(name, part, row) for row in range(count)]
            rows = change(name, part, graph.vectors(name, part, count, 1))
            with remapped.new_part(folder, name, part, rows.shape[1]) as writer:
                writer.append(pa.array(ids), rows)


def write_edges(path, rng):
    """Random edges in all buckets; their number by type, partition and row."""
    degrees = {
        (name, part): np.zeros(count, int) for name in COUNTS for part, count in enumerate(COUNTS[name])
    }
    for lhs in range(2):
        for rhs in range(2):
            edges = []
            for _ in range(20):
                rel = 0 if rhs == 0 and rng.random() < 0.5 else 1
                of_rhs = ("item", 0) if rel == 0 else ("user", rhs)
                edge = rng.integers(COUNTS["user"][lhs]), rel, rng.integers(len(degrees[of_rhs]))
                degrees["user", lhs][edge[0]] += 1
                degrees[of_rhs][edge[2]] += 1
                edges.append(edge)
            columns = np.array(edges, np.int64).T
            edge_buckets.write_bucket(path, Bucket(lhs, rhs), Edges(*columns, None))
    return degrees


@pytest.mark.parametrize("place", ["local", pytest.param("hdfs", marks=pytest.mark.hdfs)])
def test_figures_are_those_of_all_ids(tmp_path, client, rng, request, place):
    root = str(tmp_path) if place == "local" else request.getfixturevalue("hdfs_uri")
    settings = configured(f"{root}/run", before=f"{root}/before", num_moved=4)
    turned = ("user", 1, 3)  # type, partition, row

    def change(name, part, rows):
        rows = rows.copy()
        if (name, part) == turned[:2]:
            rows[[turned[2], 4]] *= -1
        return rows

    write_embeddings(settings.embedding_path)
    write_embeddings(f"{root}/before", change)
    degrees = write_edges(settings.edge_paths[0], rng)
    assert job.check(settings) == ""
    figures = json.loads(json.dumps(job.run(settings, client)))
    assert figures["before"] == f"{root}/before"
    for name, counts in COUNTS.items():
        found = figures["types"][name]
        assert (found["num_compared"], found["num_new"], found["num_gone"]) == (sum(counts), 0, 0)
        assert found["p50"] == 1
        own = np.concatenate([degrees[name, part] for part in range(len(counts))])
        for band in found["by_degree"]:
            assert band["num_ids"] == ((band["first"] <= own) & (own <= band["last"])).sum()
        assert sum(band["num_ids"] for band in found["by_degree"]) == sum(counts)
    moved = figures["types"]["user"]["moved_most"]
    assert moved[0] == {
        "id": graph.raw_id(*turned),
        "cosine": -1,
        "degree": int(degrees[turned[:2]][turned[2]]),
    }
    assert len(moved) == 4

    limited = configured(f"{root}/run", before=f"{root}/before", max_p10=0.0)
    with pytest.raises(DriftError, match=r"drift.max_p10 = 0 .*: user ") as error:
        job.run(limited, client)
    assert error.value.exit_code == 3
    assert error.value.figures["types"].keys() == COUNTS.keys()
    assert job.fingerprint(limited) != job.fingerprint(settings)
    job.run(configured(f"{root}/run", before=f"{root}/before", max_p10=2.0), client)


def test_what_cannot_be_compared(tmp_path, client, rng):
    output, before = str(tmp_path / "run"), str(tmp_path / "before")
    settings = configured(output, before=before)
    write_embeddings(settings.embedding_path)
    write_edges(settings.edge_paths[0], rng)
    assert "there is no run before" in job.check(configured(output))
    assert "the run before has no embeddings" in job.check(settings)
    write_embeddings(before, lambda name, part, rows: np.concatenate([rows, rows], axis=1))
    with pytest.raises(BadInputError, match=r"'user' has vectors of length 4 now, of 8 in .*before"):
        job.run(settings, client)
    storage.delete(before)
    write_embeddings(before)
    others = Edges(*np.full((3, 1), 9, np.int64), None)
    edge_buckets.write_bucket(settings.edge_paths[0], Bucket(0, 1), others)
    with pytest.raises(FormatError):  # another graph's edges
        job.run(settings, client)
    as_csv = settings.model_dump(mode="json") | {
        "remap": {"output_format": "csv"},
        "drift": {"before": before},
    }
    with pytest.raises(ConfigError, match="found keys of remap that write others"):
        job.check(config.from_mapping(as_csv))
