"""`train.init_embeddings`: rows that start from vectors which users bring, joined by raw id."""

import os
import re
import shutil
import tempfile
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from graphmill import config as configuration
from graphmill import storage
from graphmill.ask import ids as id_search
from graphmill.checkpoints import pbg
from graphmill.errors import ConfigError, FormatError, NotFoundError
from graphmill.formats import remapped
from graphmill.run import dates
from tests.contents import contents, flip_a_bit
from tests.train.graphs import (
    changed,
    embeddings,
    make_config,
    random_triples,
    relation,
    with_train,
    write_graph,
)
from tests.train.vectors import raw_ids, write_index, write_vectors
from train import job
from train.tables import given_rows, given_vectors
from train.tables.partition_files import PartitionFiles
from train.tables.run_context import RunContext
from train.tables.vector_files import VectorFiles

NUM, DIMENSION = 41, 8
LISTS = [pa.list_(pa.float32()), pa.list_(pa.float64()), pa.large_list(pa.float32()), pa.list_(pa.float16())]


def configured(root, paths=None, num_partitions=1, **more):
    """A graph of `node`, whose vectors are at `paths`; nothing is written."""
    train = {"init_embeddings": {"node": str(paths)} if paths else {}} | more.pop("train", {})
    return make_config(root, num_partitions, train=train, **more)


def written(root, paths=None, num_partitions=1, num=NUM, **more):
    """A configuration, with its graph and its raw ids."""
    config = configured(root, paths, num_partitions, **more)
    ids = list(raw_ids(num, num_partitions))
    write_graph(config, {"node": num}, random_triples(np.random.default_rng(1), num, 1, num, 200))
    write_index(config, {"node": ids})
    return config, ids


def with_vectors(root, num_partitions=1, **more):
    """The same, with a vector of every id."""
    config, ids = written(root, root / "v.parquet", num_partitions, **more)
    write_vectors(root / "v.parquet", ids, vectors_of(NUM))
    return config, ids


def two_types(root, num_partitions=1, train=None, **more):
    """A graph of users and nodes, whose vectors are at v.parquet; and the raw ids of the nodes."""
    config = make_config(
        root,
        entities={name: {"num_partitions": num_partitions} for name in ("user", "node")},
        relations=[relation("none", name="likes", lhs="user")],
        train={"init_embeddings": {"node": f"{root}/v.parquet"}, **(train or {})},
        **more,
    )
    counts = {"user": 20, "node": NUM}
    ids = {name: list(raw_ids(count, num_partitions)) for name, count in counts.items()}
    write_graph(config, counts, random_triples(np.random.default_rng(1), 20, 1, NUM, 200))
    write_index(config, ids)
    return config, ids["node"]


def first_rows(config):
    """The rows [NUM, D] that training starts from."""
    num_partitions = config.entities["node"].num_partitions
    files = PartitionFiles(RunContext(config))
    rows = np.zeros((NUM, config.entity_dimension("node")), np.float32)
    for part in range(num_partitions):
        rows[part::num_partitions] = files.load(("node", part), 0).embeddings_ND.numpy()
    return rows


def drawn(config):
    return first_rows(with_train(config, init_embeddings={}))


def rms(vectors):
    return np.sqrt(np.square(vectors, dtype=np.float64).mean())


def vectors_of(num, length=DIMENSION, seed=3):
    return np.random.default_rng(seed).normal(2.0, 3.0, (num, length)).astype(np.float32)


def check_taken(config, vectors):
    """The rows that training starts from are the given vectors."""
    given_vectors.make(config)
    np.testing.assert_allclose(first_rows(config), vectors * config.lr / rms(vectors), rtol=1e-5)


class TestJoin:
    @pytest.mark.slow
    @settings(max_examples=25)
    @given(
        num_partitions=st.integers(1, 4),
        length=st.integers(1, DIMENSION),
        id_type=st.sampled_from([pa.int64(), pa.string(), pa.dictionary(pa.int32(), pa.string())]),
        list_type=st.sampled_from([*LISTS, None]),
        first=st.sampled_from([None, "bias", "popularity"]),
        seed=st.integers(0, 2**32 - 1),
    )
    @example(
        num_partitions=1, length=1, id_type=pa.string(), list_type=LISTS[0], first=None, seed=7075
    )  # no rows
    def test_rows_are_those_of_a_dictionary(self, num_partitions, length, id_type, list_type, first, seed):
        rng = np.random.default_rng(seed)
        start = int(first is not None)
        length = min(length, DIMENSION - start)
        with tempfile.TemporaryDirectory() as root:
            more = {"bias": first == "bias", "comparator": "dot", "lr": 0.2}
            train = {"popularity": first == "popularity"}
            config = configured(root, f"{root}/v", num_partitions, train=train, **more)
            is_integer = id_type == pa.int64()
            ids = list(raw_ids(NUM, num_partitions, is_integer))
            write_index(config, {"node": ids})
            known = rng.random(NUM) < rng.random()
            names = [name for name, is_known in zip(ids, known, strict=True) if is_known]
            others = [str(10**9 + number) for number in range(int(rng.integers(9)))]
            names = [str(each) for each in rng.permutation([*names, *others])]
            vectors = vectors_of(len(names), length, seed).astype(np.float16).astype(np.float32)
            cut = int(rng.integers(len(names) + 1))
            kind = list_type or pa.list_(pa.float32(), length)
            for number, part in enumerate((slice(None, cut), slice(cut, None))):
                given_ids = [int(each) for each in names[part]] if is_integer else names[part]
                file = f"{root}/v/{number}.parquet"
                write_vectors(file, given_ids, vectors[part], list_type=kind, id_type=id_type)
            given_vectors.make(config)
            by_id = dict(zip(names, vectors, strict=True))
            taken = np.array([by_id[name] for name in ids if name in by_id], np.float32)
            rows, fresh = first_rows(config), drawn(config)
            for row, name in enumerate(ids):
                if name in by_id:
                    expected = by_id[name] * np.float32(config.lr / rms(taken))
                    np.testing.assert_allclose(rows[row, start : start + length], expected, rtol=1e-5)
                    assert np.array_equal(rows[row, start + length :], fresh[row, start + length :])
                    assert np.array_equal(rows[row, :start], fresh[row, :start])
                else:
                    assert np.array_equal(rows[row], fresh[row])
            found = given_vectors.figures(config)["node"]
            assert found["num_vectors"] == len(names)
            assert found["num_taken"] == len(taken) == NUM - found["num_drawn"]
            assert found["num_not_in_graph"] == len(others)

    def test_ids_of_one_hash_are_told_apart(self, tmp_path, monkeypatch):
        config, ids = with_vectors(tmp_path)
        write_vectors(tmp_path / "v.parquet", ids[::-1], vectors_of(NUM)[::-1])
        monkeypatch.setattr(id_search, "hash_strings", lambda ids, seed: np.zeros(len(ids), np.uint64))
        check_taken(config, vectors_of(NUM))

    def test_a_vectors_file_may_be_read_in_many_batches(self, tmp_path, monkeypatch):
        config, _ = with_vectors(tmp_path, 3)
        monkeypatch.setattr("train.tables.vector_files.BATCH_BYTES", 3 * 4 * DIMENSION)
        monkeypatch.setattr(given_vectors, "WRITE_BYTES", 5 * 4 * DIMENSION)
        monkeypatch.setattr(given_vectors, "MOST_FILES", 2)  # fewer files than partitions
        assert max(len(batch.ids) for batch in VectorFiles(str(tmp_path / "v.parquet")).batches()) == 3
        check_taken(config, vectors_of(NUM))

    def test_embeddings_of_another_run_a_folder_and_a_pattern(self, tmp_path):
        vectors = vectors_of(NUM)
        for number, pattern in enumerate(["given/node", "gi*/n[no]de/part-*.parquet"]):
            config, ids = written(tmp_path / str(number), tmp_path / pattern)
            for part in range(2):
                with remapped.new_part(str(tmp_path / "given"), "node", part, DIMENSION) as writer:
                    writer.append(pa.array(ids[part::2]), vectors[part::2])
            (tmp_path / "given/node/_SUCCESS").write_text("{}")
            check_taken(config, vectors)

    @pytest.mark.hdfs
    def test_on_hdfs(self, hdfs_uri, client):
        config, ids = written(f"{hdfs_uri}/run", f"{hdfs_uri}/v*/x-*.parquet", 2, lr=1e-12, max_norm=None)
        vectors = vectors_of(NUM)
        write_vectors(f"{hdfs_uri}/vectors/x-1.parquet", ids[:20], vectors[:20])
        write_vectors(f"{hdfs_uri}/vectors/x-2.parquet", ids[20:], vectors[20:])
        figures = job.run(config, client)
        assert figures["init_embeddings"]["node"]["num_taken"] == NUM
        expected = torch.from_numpy(vectors * np.float32(config.init_scale / rms(vectors)))
        torch.testing.assert_close(embeddings(config, "node", NUM), expected, rtol=1e-5, atol=1e-10)


class TestProjection:
    def test_long_vectors_become_principal_components(self, tmp_path, monkeypatch):
        config, ids = written(tmp_path, tmp_path / "v.parquet")
        rng = np.random.default_rng(8)
        basis = rng.normal(size=(DIMENSION, 20)) * np.geomspace(5, 0.5, DIMENSION)[:, None]
        vectors = rng.normal(size=(NUM, DIMENSION)) @ basis + 0.01 * rng.normal(size=(NUM, 20)) + 100
        monkeypatch.setattr(given_vectors, "SAMPLE", 30)
        write_vectors(tmp_path / "v.parquet", ids, vectors)
        given_vectors.make(config)
        found = given_vectors.figures(config)["node"]
        assert found["explained_variance"] > 0.99
        assert 15 < found["num_fitted"] < NUM
        rows = first_rows(config)
        assert rms(rows) == pytest.approx(config.lr, rel=1e-4)
        # distances stay, but for what the components leave out
        apart = [each[:, None] - each[None] for each in (vectors - vectors.mean(0), rows)]
        before, after = (np.linalg.norm(each, axis=2)[np.triu_indices(NUM, 1)] for each in apart)
        assert np.std(after / before) < 0.02 * np.mean(after / before)

    def test_too_long_vectors_are_refused(self, tmp_path, monkeypatch):
        monkeypatch.setattr(given_vectors, "MOST_LENGTH", 11)
        config, ids = written(tmp_path, tmp_path / "v.parquet")
        write_vectors(tmp_path / "v.parquet", ids, np.zeros((NUM, 12), np.float32))
        with pytest.raises(FormatError, match="length 12: expected 11 at most"):
            given_vectors.make(config)


class TestBadInput:
    @pytest.mark.parametrize(
        ("ids", "vectors", "told"),
        [
            (["a", "b", None], [[1.0]] * 3, r"v\.parquet: row 2: column 'id': expected a raw id, found null"),
            (["a", "b"], [[1.0], None], r"row 1: column 'embedding': expected a vector, found null"),
            (["a", "b"], [[1.0, 2.0], [None, 1.0]], r"row 1: column 'embedding': expected numbers, found"),
            (["a", "b"], [[1.0], [float("nan")]], r"row 1: .*expected finite numbers.*NaN or infinity"),
            (["a", "b"], [[1.0], [1e300]], r"row 1: .*expected finite numbers of float32"),
            (["a", "b"], [[1.0], [1.0, 2.0]], r"row 1: .*expected 1 numbers, as in the first row of all"),
            (["a", "b"], [[], []], r"row 0: .*expected one or more numbers"),
        ],
    )
    def test_a_bad_row_is_named(self, tmp_path, ids, vectors, told):
        config, _ = written(tmp_path, tmp_path / "v.parquet")
        write_vectors(tmp_path / "v.parquet", ids, vectors, list_type=pa.list_(pa.float64()))
        with pytest.raises(FormatError, match=told + ".*correct the file, or leave the row out"):
            given_vectors.make(config)
        assert not given_vectors.figures(config)

    @pytest.mark.parametrize("places", [(2, 3), (2, 30)])
    def test_an_id_twice_is_named_with_both_rows(self, tmp_path, places):
        config, ids = written(tmp_path, tmp_path / "v", num_partitions=2)
        names = list(ids)
        names[places[1]] = ids[places[0]]
        write_vectors(tmp_path / "v/1.parquet", names[:10], vectors_of(10))
        write_vectors(tmp_path / "v/2.parquet", names[10:], vectors_of(NUM - 10))
        second = "1.parquet: row 3" if places[1] == 3 else "2.parquet: row 20"
        told = f"{second}: id '{ids[2]}' again, after .*1.parquet: row 2; expected an id once"
        with pytest.raises(FormatError, match=told):
            given_vectors.make(config)

    @pytest.mark.parametrize(
        ("columns", "told"),
        [
            ({"id": ["a"]}, "column 'embedding': expected a list of floats, found no such column"),
            (pa.table([["a"], ["b"]], names=["id", "id"]), "expected one column 'id', found 2"),
            ({"id": [1.5], "embedding": [[1.0]]}, "column 'id': expected string or integer, found double"),
            ({"id": ["a"], "embedding": [["x"]]}, "'embedding': expected a list of floats, found list"),
        ],
    )
    def test_other_columns_are_refused(self, tmp_path, columns, told):
        config, _ = written(tmp_path, tmp_path / "v.parquet")
        pq.write_table(pa.table(columns), tmp_path / "v.parquet")
        with pytest.raises(FormatError, match=told):
            given_vectors.make(config)

    def test_damage_no_files_and_no_such_type(self, tmp_path):
        config, _ = written(tmp_path, tmp_path / "v*.parquet")
        with pytest.raises(NotFoundError, match=r"init_embeddings\.node: .*v\*\.parquet: no file there"):
            job.check(config)
        (tmp_path / "v.parquet").write_text("id,embedding\n")
        job.check(config)
        with pytest.raises(FormatError, match="expected a parquet file"):
            given_vectors.make(config)
        wrong = configured(tmp_path, train={"init_embeddings": {"nodes": str(tmp_path)}})
        with pytest.raises(ConfigError, match=r"train\.init_embeddings\.nodes: no such entity type; .*node"):
            job.check(wrong)

    def test_an_index_of_other_partitions_is_refused(self, tmp_path):
        written(tmp_path, num_partitions=2)
        config = configured(tmp_path, tmp_path / "v.parquet", 3)
        with pytest.raises(FormatError, match="with 3 partitions of 'node', found murmurhash64a and 2"):
            given_vectors.make(config)


class TestRun:
    @pytest.mark.parametrize(
        "train", [{"resident": "always"}, {"memory_partitions": 4}, {"num_workers": 2}, {"ensemble": 2}]
    )
    def test_every_placement_starts_from_the_vectors(self, tmp_path, client, caplog, train):
        """Rows that do not move show where they began."""
        config, ids = two_types(tmp_path, 4, num_epochs=1, train={**train, "freeze": ["node"]})
        vectors = vectors_of(NUM)
        write_vectors(tmp_path / "v.parquet", [*ids[:30], "another"], vectors[:31])
        caplog.set_level("INFO", "graphmill")
        figures = job.run(config, client)
        expected = vectors[:30] * config.lr / rms(vectors[:30])
        rows = embeddings(config, "node", NUM).numpy()
        for member in np.split(rows, config.train.ensemble, axis=1):
            np.testing.assert_allclose(member[:30], expected, rtol=1e-5)
        assert figures["init_embeddings"]["node"] == {
            "num_vectors": 31,
            "length": DIMENSION,
            "num_taken": 30,
            "num_drawn": 11,
            "num_not_in_graph": 1,
            "num_of_init_path": 0,
        }
        assert "vector: 30 (of 31, length 8); without one: 11; vectors not in the graph: 1" in caplog.text
        assert not Path(given_rows.folder_of(config)).exists()

    def test_resuming_reads_no_vectors(self, tmp_path):
        for name in ("whole", "parts"):
            config, _ = with_vectors(tmp_path / name, 2, num_epochs=2)
            given_vectors.make(config)
            for num_epochs in (1, 2) if name == "parts" else (2,):
                job.train(changed(config, num_epochs=num_epochs))
                if num_epochs == 1:
                    shutil.rmtree(given_rows.folder_of(config))
                    assert not given_vectors.is_needed(config, [config])
        whole, parts = (
            pbg.read_embeddings(str(tmp_path / name / "checkpoint"), "node", 0, 2)[0]
            for name in ("whole", "parts")
        )
        assert np.array_equal(whole, parts)

    def test_rows_of_a_killed_run_are_used_again_unless_they_are_of_other_files(self, tmp_path):
        config, ids = with_vectors(tmp_path)
        given_vectors.make(config)
        assert not given_vectors.is_needed(config, [config])
        before = first_rows(config)
        for changes in ({"lr": 0.3}, {"dimension": 6}, {"bias": True}):
            other = configuration.from_mapping(config.model_dump() | changes)
            assert given_vectors.is_needed(other, [other])
        write_vectors(tmp_path / "v.parquet", ids, vectors_of(NUM, seed=9))
        os.utime(tmp_path / "v.parquet", (1, 1))
        assert given_vectors.is_needed(config, [config])
        given_vectors.make(config)
        assert not np.array_equal(first_rows(config), before)

    def test_damaged_rows_are_refused(self, tmp_path):
        config, _ = with_vectors(tmp_path)
        with pytest.raises(FormatError, match="expected the first rows of a run"):
            first_rows(config)
        given_vectors.make(config)
        flip_a_bit(Path(given_rows.part_uri(given_rows.folder_of(config), "node", 0)))
        with pytest.raises(FormatError, match="checksum"):
            first_rows(config)

    def test_other_vectors_train_anew(self, tmp_path, near_client):
        plain, _ = written(tmp_path)
        assert "init_embeddings" not in str(job.fingerprint(plain))
        config, ids = with_vectors(tmp_path, num_epochs=1)
        assert job.run(config, near_client)["init_embeddings"]
        assert job.run(config, near_client)["num_edges"] == 0  # nothing has changed
        fingerprint = job.fingerprint(config)
        assert str(tmp_path / "v.parquet") in str(fingerprint["inputs"])
        write_vectors(tmp_path / "v.parquet", ids[:5], vectors_of(5))
        assert job.fingerprint(config) != fingerprint
        figures = job.run(config, near_client)
        assert figures["moved_aside"]
        assert figures["init_embeddings"]["node"]["num_taken"] == 5

    def test_wrong_vectors_leave_the_checkpoint_in_its_place(self, tmp_path, near_client):
        """An id that comes twice is found when all other vectors have been read."""
        config, ids = with_vectors(tmp_path, num_epochs=1)
        job.run(config, near_client)
        before = contents(Path(config.checkpoint_path))
        write_vectors(tmp_path / "v.parquet", [*ids, ids[0]], vectors_of(NUM + 1))
        with pytest.raises(FormatError, match="again, after"):
            job.run(config, near_client)
        assert contents(Path(config.checkpoint_path)) == before
        assert not storage.moved_aside(config.checkpoint_path)


class TestInitPath:
    def test_only_new_ids_take_a_vector(self, tmp_path):
        first, _ = written(tmp_path / "first", num_partitions=2, num=30, num_epochs=1)
        job.train(first)
        second, ids = written(tmp_path / "second", tmp_path / "v.parquet", 2, init_path=first.checkpoint_path)
        vectors = vectors_of(NUM)
        write_vectors(tmp_path / "v.parquet", ids[:40], vectors[:40])
        given_vectors.make(second)
        rows = first_rows(second)
        assert np.array_equal(rows[:30], embeddings(first, "node", 30).numpy())
        expected = vectors[30:40] * second.lr / rms(vectors[30:40])
        np.testing.assert_allclose(rows[30:40], expected, rtol=1e-5)
        assert np.array_equal(rows[40:], drawn(second)[40:])
        found = given_vectors.figures(second)["node"]
        assert (found["num_taken"], found["num_of_init_path"], found["num_drawn"]) == (10, 30, 1)


class TestFrozen:
    def test_vectors_stay_to_the_bit(self, tmp_path, near_client, caplog):
        frozen = {"freeze": ["node"]}
        config, ids = two_types(tmp_path, num_epochs=2, max_norm=0.1, train=frozen)
        write_vectors(tmp_path / "v.parquet", ids, vectors_of(NUM, 20))
        given_vectors.make(config)
        before = first_rows(config)
        caplog.set_level("INFO", "graphmill")
        job.run(config, near_client)
        assert np.array_equal(embeddings(config, "node", NUM).numpy(), before)
        assert "stay as they are drawn" not in caplog.text

    def test_vectors_of_other_ids_are_refused(self, tmp_path, caplog):
        """Nothing but random rows would be frozen."""
        for frozen in ([], ["node"]):
            config, ids = two_types(tmp_path, 2, train={"freeze": frozen})
            write_vectors(tmp_path / "v.parquet", [f"x{name}" for name in ids], vectors_of(NUM))
            said = rf"expected vectors of the {NUM} ids .*none of them among {NUM}"
            with pytest.raises(ConfigError, match=said) if frozen else nullcontext():
                given_vectors.make(config)
            assert re.search(said, caplog.text)

    def test_random_rows_are_told_and_shorter_vectors_refused(self, tmp_path, caplog):
        config, ids = two_types(tmp_path, 2, train={"freeze": ["node"]})
        write_vectors(tmp_path / "v.parquet", ids[:1], vectors_of(1))
        given_vectors.make(config)
        assert f"keep a random one, as train.freeze says: {NUM - 1} of {NUM}" in caplog.text
        write_vectors(tmp_path / "v.parquet", ids, vectors_of(NUM, 5))
        with pytest.raises(ConfigError, match=r"length 5 are shorter than .*\(8\).*set dimension to 5"):
            given_vectors.make(config)


class TestConfiguration:
    def test_relative_paths_start_at_the_current_folder(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        config = configured(tmp_path, "vectors/*.parquet")
        found = config.train.init_embeddings
        assert found == {"node": str(tmp_path / "vectors/*.parquet")}

    def test_the_first_date_has_no_vectors_of_a_date_before(self, tmp_path):
        conf = tmp_path / "conf.yaml"
        conf.write_text(
            f"output: {tmp_path}/{{date}}\nentities: {{node: {{}}}}\n"
            "relations: [{name: r, lhs: node, rhs: node}]\n"
            f"train: {{init_embeddings: {{node: '{tmp_path}/{{previous_date}}/embeddings/node'}}}}\n"
        )
        config = dates.load(str(conf), (), dates.date(2026, 11, 20))
        assert config.train.init_embeddings == {"node": None}
        job.check(config)
        assert given_vectors.inputs_of(config) == []
