"""The stage drift on embeddings and edges of two runs, local and on HDFS, and what it counts."""

import json
from collections import Counter
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphmill import config, storage
from graphmill.ask import drift as job
from graphmill.ask.drift import DRIFT_RATIO, Moved, cosines, moved_of_part
from graphmill.ask.earlier import pairs
from graphmill.config.sections.remap import DriftConfig
from graphmill.errors import BadInputError, ConfigError, DriftError, FormatError
from graphmill.formats import edge_buckets, remapped
from graphmill.formats.edge_buckets import Edges
from graphmill.vocab import Bucket
from tests.graphmill.ask.predict.world import write_world


def drifting(world, **settings):
    return world.config.with_section(DriftConfig(**settings))


@pytest.mark.parametrize("place", ["local", pytest.param("hdfs", marks=pytest.mark.hdfs)])
def test_figures_are_those_of_all_ids(tmp_path, client, request, place):
    root = str(tmp_path) if place == "local" else request.getfixturevalue("hdfs_uri")
    world, before = write_world(f"{root}/run", num_partitions=3), f"{root}/before"
    settings = drifting(world, before=before, num_moved=4)
    turned = world.vectors["user"].copy()
    turned[[10, 11]] *= -1
    world.publish(settings.embedding_path)
    world.publish(before, world.vectors | {"user": turned})
    degrees = Counter()
    for lhs, rel, rhs in world.edges["train"]:
        degrees.update(zip(world.types(rel).values(), (lhs, rhs), strict=True))
    assert job.check(settings) == ""
    figures = json.loads(json.dumps(job.run(settings, client)))
    assert figures["before"] == before
    for name, count in (("user", 16), ("item", 30)):
        found = figures["types"][name]
        assert (found["num_compared"], found["num_new"], found["num_gone"]) == (count, 0, 0)
        assert found["p50"] == 1
        own = np.array([degrees[name, number] for number in range(count)])
        for band in found["by_degree"]:
            assert band["num_ids"] == ((band["first"] <= own) & (own <= band["last"])).sum()
        assert sum(band["num_ids"] for band in found["by_degree"]) == count
    moved = figures["types"]["user"]["moved_most"]
    assert moved[0] == {"id": world.name("user", 10), "cosine": -1, "degree": degrees["user", 10]}
    assert len(moved) == 4

    limited = drifting(world, before=before, max_p10=0.0)
    with pytest.raises(DriftError, match=r"drift.max_p10 = 0 .*: user ") as error:
        job.run(limited, client)
    assert error.value.exit_code == 3
    assert error.value.figures["types"].keys() == {"user", "item"}
    assert job.fingerprint(limited) != job.fingerprint(settings)
    job.run(drifting(world, before=before, max_p10=2.0), client)
    with pytest.raises(DriftError):
        job.run(drifting(world, before=before, max_p10=1.99), client)


def test_what_cannot_be_compared(tmp_path, client):
    world, before = write_world(tmp_path / "run", num_partitions=3), str(tmp_path / "before")
    settings = drifting(world, before=before)
    world.publish(settings.embedding_path)
    assert "there is no run before" in job.check(world.config)
    assert "the run before has no embeddings" in job.check(settings)
    for path, found in (settings.embedding_path, "is also embedding_path"), (str(tmp_path), "has no"):
        with pytest.raises(ConfigError, match=rf"drift\.before: {path} {found}"):
            job.check(drifting(world, before=path))
    world.publish(before, {name: np.tile(rows, 2) for name, rows in world.vectors.items()})
    with pytest.raises(BadInputError, match=r"'user' has vectors of length 6 now, of 12 in .*before"):
        job.run(settings, client)
    storage.delete(before)
    world.publish(before)
    others = Edges(*np.full((3, 1), 9, np.int64), None)
    edge_buckets.write_bucket(settings.edge_paths[0], Bucket(0, 1), others)
    with pytest.raises(FormatError):  # another graph's edges
        job.run(settings, client)
    as_csv = settings.model_dump(mode="json") | {"remap": {"output_format": "csv"}}
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
    places = str(tmp_path / "now"), str(tmp_path / "before")
    old = {f"id{number}": rng.normal(size=4).astype(np.float32) for number in range(90)}
    new = {name: old.get(name, np.ones(4, np.float32)) for name in map("id{}".format, range(20, 120))}
    new["id30"] = -new["id30"]
    for place, rows, parts in ((places[0], new, 2), (places[1], old, num_before)):
        for part in range(parts):
            names = [name for number, name in enumerate(sorted(rows)) if number % parts == part]
            with remapped.new_part(place, "node", part, 4) as writer:
                for start in range(0, len(names), 16):
                    own = names[start : start + 16]
                    writer.append(pa.array(own), np.stack([rows[name] for name in own]))
    ids = remapped.read_ids(places[0], "node", 0).to_pylist()
    batches = partial(remapped.iter_part, places[0], "node", 0, 7)
    for each in pairs(batches, places[1], "node", range(num_before)):
        for row, now, then in zip(*each, strict=True):
            assert (now == new[ids[row]]).all()
            assert (then == old[ids[row]]).all()
    degrees = [np.arange(remapped.shape_of(places[0], "node", part)[0]) for part in range(2)]
    parts = [moved_of_part(places, "node", part, range(num_before), degrees[part], 3) for part in range(2)]
    found = Moved.joined(parts, 3).figures(len(old))
    assert (found["num_compared"], found["num_new"], found["num_gone"]) == (70, 30, 20)
    names = sorted(new)
    place = names.index("id30")
    assert found["moved_most"][0] == {"id": "id30", "cosine": -1, "degree": place // 2}
    assert found["p50"] == 1
    assert found["by_cosine"][-1] == {"from": -1, "to": 0, "num_ids": 1}
