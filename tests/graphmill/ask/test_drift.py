"""The stage drift on embeddings and edges of two runs, local and on HDFS, and what it counts."""

import json
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphmill import config, storage
from graphmill.ask import drift as job
from graphmill.ask.drift import DRIFT_RATIO, Moved, cosines, moved_of_part
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


seeds = st.integers(0, 2**32)


@given(seed=seeds, num=st.integers(1, 300), power=st.floats(0, 4), cuts=st.lists(st.integers(0, 300)))
@settings(max_examples=30)
def test_parts_add_up_to_the_whole(seed, num, power, cuts):
    """Quantiles are those of all ids, but for the width of a bin; the ids that moved most are found."""
    rng = np.random.default_rng(seed)
    cosine_N = 1 - 2 * rng.random(num) ** (1 + power)
    degree_N = rng.integers(0, 50, num)
    ids = pa.array([f"id{number}" for number in range(num)])
    ends = sorted({0, num, *(each for each in cuts if each < num)})
    parts = [
        Moved.of(stop - start, ids[start:stop], cosine_N[start:stop], degree_N[start:stop], 5)
        for start, stop in pairwise(ends)
    ]
    found = Moved.joined(parts, 5).figures(num + 3)
    assert found == Moved.of(num, ids, cosine_N, degree_N, 5).figures(num + 3) | {
        "mean_cosine": pytest.approx(cosine_N.mean(), abs=1e-6)
    }
    assert (found["num_compared"], found["num_new"], found["num_gone"]) == (num, 0, 3)
    drift_N = np.sort(1 - cosine_N)
    for name, share in (("p50", 0.5), ("p10", 0.9), ("p1", 0.99)):
        exact = drift_N[int(np.ceil(share * num - 1e-9)) - 1]
        assert exact - 1e-6 <= 1 - found[name] <= max(exact * DRIFT_RATIO, 1e-7) + 1e-6
    lowest = [each["id"] for each in found["moved_most"]]
    assert [cosine_N[int(each[2:])] for each in lowest] == sorted(cosine_N)[:5]
    assert sum(each["num_ids"] for each in found["by_cosine"]) == num
    for band in found["by_degree"]:
        assert band["num_ids"] == ((band["first"] <= degree_N) & (degree_N <= band["last"])).sum()


def test_cosines_of_zero_vectors_and_of_others_without_a_direction():
    nan, inf = np.nan, np.inf
    now = np.array([[0, 0], [0, 0], [1, 1], [3, 4], [1e-30, 0], [nan, 1], [inf, 1]], np.float32)
    then = np.array([[0, 0], [1, 0], [0, 0], [-6, -8], [5, 0], [1, 1], [nan, 0]], np.float32)
    np.testing.assert_allclose(cosines(now, then), [1, 0, 0, -1, 1, 0, 1])


@pytest.mark.parametrize("num_before", [1, 3])
def test_ids_are_found_wherever_the_run_before_has_them(tmp_path, rng, num_before):
    """Other rows, other partitions, ids that came and ids that went; batches smaller than a part."""
    places = str(tmp_path / "now"), str(tmp_path / "before")
    old = {f"id{number}": rng.normal(size=4).astype(np.float32) for number in range(90)}
    new = {
        name: old.get(name, np.ones(4, np.float32)) for name in [f"id{number}" for number in range(20, 120)]
    }
    new["id30"] = -new["id30"]
    for place, rows, parts in ((places[0], new, 2), (places[1], old, num_before)):
        for part in range(parts):
            names = [name for number, name in enumerate(sorted(rows)) if number % parts == part]
            with remapped.new_part(place, "node", part, 4) as writer:
                for start in range(0, len(names), 16):
                    own = names[start : start + 16]
                    writer.append(pa.array(own), np.stack([rows[name] for name in own]))
    degrees = [np.arange(remapped.shape_of(places[0], "node", part)[0]) for part in range(2)]
    parts = [moved_of_part(places, "node", part, range(num_before), degrees[part], 3) for part in range(2)]
    found = Moved.joined(parts, 3).figures(len(old))
    assert (found["num_compared"], found["num_new"], found["num_gone"]) == (70, 30, 20)
    names = sorted(new)
    place = names.index("id30")
    assert found["moved_most"][0] == {"id": "id30", "cosine": -1, "degree": place // 2}
    assert found["p50"] == 1
    assert found["by_cosine"][-1] == {"from": -1, "to": 0, "num_ids": 1}
