"""train, do_eval and the schema do as PyTorch-BigGraph's functional tests demand, over a similar graph."""

import gzip
import json
import pickle
import tarfile
from pathlib import Path

import attr
import click
import h5py
import numpy as np
import pytest

from graphmill.ask.evaluate import evaluate
from graphmill.config import from_mapping
from graphmill.errors import ConfigError, DivergenceError, NotFoundError, RawTableError
from tests import DATA
from tests.commands import on_cluster
from tests.etl.graphs import files_under
from tests.train.graphs import random_edges, write_bare_checkpoint, write_graph
from tests.workers import forking
from train.pbg_api import (
    BucketOrder,
    ConfigFileLoader,
    ConfigSchema,
    DeepTypeError,
    EdgelistReader,
    EntitySchema,
    FilteredRankingEvaluator,
    Operator,
    RankingEvaluator,
    RelationSchema,
    Stats,
    SubprocessInitializer,
    TSVEdgelistReader,
    convert_input_data,
    do_eval,
    do_eval_and_report_stats,
    download_url,
    evolve,
    extract_gzip,
    extract_tar,
    override_config_dict,
    parse_config,
    run_partition_server,
    train,
)

ITERATION = {"num_epochs", "epoch_idx", "num_edge_paths", "edge_path_idx", "edge_path", "num_edge_chunks",
             "edge_chunk_idx"}  # fmt: skip
NUM_ENTITIES, ONE = 60, {"num_partitions": 1}


class Graph:
    """Random edges of a few rows, a share of them at each edge path."""

    def __init__(self, folder, schema, shares, num_relations=1):
        rng = np.random.default_rng(7)
        self.entity_path = folder / "entities"
        self.edge_paths = [str(folder / f"edges{number}") for number in range(len(shares))]
        config = from_mapping(on(self, schema, *range(len(shares))).to_dict())
        counts = dict.fromkeys(schema.entities, NUM_ENTITIES)
        for path, share in zip(self.edge_paths, shares, strict=True):
            edges = random_edges(config, counts, rng, int(1200 * share) * len(schema.relations))
            edges[:, 1] += rng.integers(num_relations, size=len(edges))
            write_graph(config, counts, edges, path=path)


@pytest.fixture
def base(tmp_path):
    return ConfigSchema(
        dimension=10,
        relations=[RelationSchema(name="r", lhs="e", rhs="e")],
        entities={"e": EntitySchema(num_partitions=1)},
        entity_path=None,
        edge_paths=[],
        checkpoint_path=str(tmp_path / "checkpoint"),
        workers=1,
    )


def on(graph, config, *numbers, **more):
    paths = [graph.edge_paths[number] for number in numbers]
    return evolve(config, entity_path=str(graph.entity_path), edge_paths=paths, **more)


def check_checkpoint(config, version):
    checkpoint = Path(config.checkpoint_path)
    assert int((checkpoint / "checkpoint_version.txt").read_text()) == version
    assert json.loads((checkpoint / "config.json").read_text()) == config.to_dict()
    with h5py.File(checkpoint / f"model.v{version}.h5") as hdf5:
        check_attributes(hdf5, config)
        found = []
        assert isinstance(hdf5["model"], h5py.Group)
        hdf5["model"].visititems(lambda _, each: found.append(each))
        for dataset in (each for each in found if isinstance(each, h5py.Dataset)):
            assert "state_dict_key" in dataset.attrs
            assert np.isfinite(dataset[...]).all()
    for name, entity in config.entities.items():
        for part in range(entity.num_partitions):
            count = int((Path(config.entity_path) / f"entity_count_{name}_{part}.txt").read_text())
            with h5py.File(checkpoint / f"embeddings_{name}_{part}.v{version}.h5") as hdf5:
                check_attributes(hdf5, config)
                rows = hdf5["embeddings"]
                assert rows.dtype == np.float32
                assert rows.shape == (count, config.dimension)
                assert np.isfinite(rows[...]).all()
                assert (np.linalg.norm(rows[...], axis=1) > 0).all()


def check_attributes(hdf5, config):
    assert hdf5.attrs["format_version"] == 1
    assert json.loads(hdf5.attrs["config/json"]) == config.to_dict()
    named = {key.removeprefix("iteration/") for key in hdf5.attrs if key.startswith("iteration/")}
    assert named == ITERATION
    state = hdf5["optimizer/state_dict"]
    assert state.dtype == np.dtype("V1")
    assert state.ndim == 1


def test_default(tmp_path, base):
    graph = Graph(tmp_path, base, [0.4, 0.2])
    config = on(graph, base, 0)
    train(config, rank=0)
    check_checkpoint(config, 1)
    relation = evolve(base.relations[0], all_negs=True)
    found = do_eval(on(graph, base, 1, relations=[relation]))
    with h5py.File(f"{graph.edge_paths[1]}/edges_0_0.h5") as hdf5:
        assert found["count"] == len(hdf5["rel"]) > 100
    assert 0 < found["metrics"]["mrr"] < 1
    # with an initial value
    given = write_bare_checkpoint(tmp_path / "init", 0, config)
    still = evolve(config, init_path=str(tmp_path / "init"), checkpoint_path=str(tmp_path / "still"), lr=1e-9)
    train(still, rank=0)
    check_checkpoint(still, 1)
    with h5py.File(tmp_path / "still/embeddings_e_0.v1.h5") as kept:
        np.testing.assert_allclose(kept["embeddings"][...], given["e", 0], atol=1e-5)
    # another rate goes on, another model does not
    train(evolve(config, lr=config.lr / 2, num_epochs=2))
    assert (tmp_path / "checkpoint" / "checkpoint_version.txt").read_text() == "2\n"
    with pytest.raises(ConfigError, match=r"train\.on_change: .* settings\.comparator"):
        train(evolve(config, comparator="dot"))
    # one that has lost its version is moved aside, and comes back where nothing is trained in its place
    (tmp_path / "checkpoint" / "checkpoint_version.txt").unlink()
    before = files_under(tmp_path / "checkpoint")
    with pytest.raises(DivergenceError):
        train(evolve(config, lr=1e30, init_scale=1e30))
    assert files_under(tmp_path / "checkpoint") == before


def test_resume_from_checkpoint(tmp_path, base):
    base = evolve(base, num_epochs=2, num_edge_chunks=2)
    graph = Graph(tmp_path, base, [0.4, 0.4])
    config = on(graph, base, 0, 1)
    write_bare_checkpoint(tmp_path / "checkpoint", 7, config)
    train(config, rank=0)
    check_checkpoint(config, 8)
    with h5py.File(f"{config.checkpoint_path}/model.v8.h5") as hdf5:
        assert (hdf5.attrs["iteration/epoch_idx"], hdf5.attrs["iteration/edge_chunk_idx"]) == (1, 1)


@pytest.mark.parametrize(
    ("entities", "ends", "num_relations"),
    [
        ({"e1": ONE | {"featurized": True}, "e2": ONE}, ["e1 e2", "e2 e1"], 1),
        # three partitions on one side, two on the other, one type without
        ({f"e{n}": {"num_partitions": n} for n in (1, 2, 3)}, ["e1 e3", "e2 e3", "e2 e1"], 1),
        ({"el": ONE, "er": ONE}, ["el er"], 10),
    ],
    ids=["featurized", "partitioned", "dynamic"],
)
def test_types_of_several_kinds(tmp_path, base, entities, ends, num_relations):
    is_dynamic = num_relations > 1
    sides = [dict(zip(("lhs", "rhs"), pair.split(), strict=True)) for pair in ends]
    base = evolve(
        base,
        entities={name: EntitySchema(**entity) for name, entity in entities.items()},
        relations=[RelationSchema(name=f"r{n}", all_negs=is_dynamic, **each) for n, each in enumerate(sides)],
        dynamic_relations=is_dynamic,
        global_emb=not is_dynamic,
    )
    graph = Graph(tmp_path, base, [0.4, 0.2], num_relations)
    config = on(graph, base, 0)
    train(config, rank=0)
    check_checkpoint(config, 1)
    assert do_eval(on(graph, base, 1))["count"] > 100


@pytest.mark.slow
def test_distributed(tmp_path, base):
    """Two trainers and a partition server, as PBG starts them: one of them does it all."""
    base = evolve(
        base,
        entities={"e": EntitySchema(num_partitions=4)},
        relations=[RelationSchema(name="r", lhs="e", rhs="e", operator=Operator.LINEAR)],
        num_machines=2,
        num_partition_servers=1,
        distributed_init_method=f"file://{tmp_path}/sync",
    )
    graph = Graph(tmp_path, base, [0.4])
    config = on(graph, base, 0)
    fork = forking()
    server = fork.Process(target=run_partition_server, args=(config,), kwargs={"rank": 0})
    other = fork.Process(target=train, args=(config,), kwargs={"rank": 1})
    server.start()
    other.start()
    try:
        train(config, rank=0)
        other.join(300)
        assert other.exitcode == 0
        assert server.is_alive()  # PBG's programs see the trainers end first
        server.join(300)
        assert server.exitcode == 0
    finally:
        server.terminate()
        server.join()
    check_checkpoint(config, 1)


def test_a_schema_of_another_release(tmp_path, base):
    """PBG's release lacks some keys of its later schema; what it gives is what is written."""
    config = on(Graph(tmp_path, base, [0.4]), base, 0, num_epochs=2)

    class Released:
        checkpoint_path, entity_path = config.checkpoint_path, config.entity_path
        entities, dimension = config.entities, config.dimension

        def to_dict(self):
            lacking = {"regularizer", "regularization_coef", "half_precision", "num_gpus"}
            return {key: value for key, value in config.to_dict().items() if key not in lacking}

    train(Released())
    check_checkpoint(Released(), 2)


def test_values_are_checked_when_they_are_used(base, tmp_path):
    with pytest.raises(ConfigError, match="entity_path"):
        train(base)
    graph = Graph(tmp_path, base, [0.4])
    with pytest.raises(ConfigError, match="two relations are named 'r'"):
        train(on(graph, base, 0, relations=base.relations * 2))
    with pytest.raises(NotFoundError, match="no checkpoint to evaluate"):
        do_eval(on(graph, base, 0))
    for name in ("model", "trainer", "evaluator"):
        with pytest.raises(ConfigError, match=f"train: {name}: expected None, found Counting"):
            train(on(graph, base, 0), **{name: Counting()})
    with pytest.raises(ConfigError, match="do_eval: model: expected None"):
        do_eval(on(graph, base, 0), model=Counting())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"comparator": "cosine"}, "comparator: .*'cosine'"),
        ({"dimension": 0}, "dimension: input should be greater than 0"),
        ({"relations": [{"name": "r", "lhs": "e"}]}, "rhs: missing"),
        ({"disable_lhs_negs": True, "disable_rhs_negs": True}, "nothing would be trained"),
    ],
)
def test_a_schema_is_checked_when_it_is_made(base, changes, message):
    for error in (ConfigError, TypeError, ValueError):  # the last two are those of PBG's schema
        with pytest.raises(error, match=message):
            evolve(base, **changes)


def test_from_dict_takes_keys_and_words_of_any_release(base):
    """A dict that PBG wrote passes through the schema unchanged."""
    written = json.loads((DATA / "pbg_v1_static/checkpoint/config.json").read_text())
    config = ConfigSchema.from_dict(written)
    assert config.bucket_order is BucketOrder.INSIDE_OUT
    assert config.relations[0] == RelationSchema(**written["relations"][0])
    assert config.entities["concept"] == EntitySchema(num_partitions=2)
    assert [*config.to_dict().items()] == [*written.items()]

    config = ConfigSchema.from_dict(
        {
            "entities": {"userId": {"numPartitions": 2}},
            "relations": [{"name": "r", "lhs": "userId", "rhs": "userId", "allNegs": 1}],
            "dimension": 4,
            "entityPath": "entities",
            "edgePaths": ["edges"],
            "outdir": "model",
            "bucket_order": "OUTSIDE_IN",
            "global_emb": "no",
        }
    )
    assert config.entities["userId"] == EntitySchema(num_partitions=2)
    assert config.relations == [RelationSchema(name="r", lhs="userId", rhs="userId", all_negs=True)]
    assert (config.checkpoint_path, config.bucket_order, config.global_emb) == ("model", "outside_in", False)
    assert pickle.loads(pickle.dumps(config)) == config
    assert attr.asdict(config)["dimension"] == config.entity_dimension("userId") == 4
    wide = evolve(base, entities={**base.entities, "wide": EntitySchema(num_partitions=1, dimension=20)})
    assert (wide.entity_dimension("e"), wide.entity_dimension("wide")) == (10, 20)
    for raw in ({"dimension": 4}, {**config.to_dict(), "colour": 1}, {"model": "mine"}, []):
        with pytest.raises(DeepTypeError, match=r"missing|colour: unknown key|model: expected|a mapping"):
            ConfigSchema.from_dict(raw)


def test_help_tells_all_keys():
    lines = ConfigSchema.help()
    for schema in (EntitySchema, RelationSchema, ConfigSchema):
        place = lines.index(f"{schema.NAME}:")
        named = [line.split()[0] for line in lines[place:] if line.startswith("  ")]
        assert named[: len(attr.fields(schema))] == [field.name for field in attr.fields(schema)]
    told = ("entities ({str: entity})", "max_norm (?float)", "edge_paths ([str])")
    assert {*lines} > {f"  {line}" for line in told}
    assert "  bucket_order ((random|affinity|inside_out|outside_in))" in lines


class Counting(RankingEvaluator):
    """Keeps what it is given, as a user's own evaluator may."""

    def __init__(self):
        self.batches = []

    def eval(self, scores, batch_edges):
        self.batches.append((scores, batch_edges))
        found = super().eval(scores, batch_edges)
        return Stats(count=found.count, mine=3.0 * found.count, **found.metrics)


def test_the_user_s_evaluator_gets_scores_and_edges(tmp_path, base):
    base = evolve(base, entities={"e": EntitySchema(num_partitions=2)}, batch_size=40, num_batch_negs=7)
    base = evolve(base, num_uniform_negs=9)
    graph = Graph(tmp_path, base, [0.4, 0.3, 0.1])
    train(on(graph, base, 0))
    evaluator, started = Counting(), []
    initializer = SubprocessInitializer()
    initializer.register(started.append, 1)
    reported = list(do_eval_and_report_stats(on(graph, base, 1, 2), None, evaluator, initializer))
    assert started == [1]
    places = [(path, bucket) for path, bucket, _ in reported]
    buckets = [(lhs, rhs) for lhs in range(2) for rhs in range(2)]
    assert places == [
        *((0, each) for each in buckets),
        (0, None),
        *((1, each) for each in buckets),
        (1, None),
        (None, None),
    ]
    assert sum(stats.count for _, bucket, stats in reported if bucket) == reported[-1][2].count
    assert reported[-1][2].metrics["mine"] == 3
    for scores, edges in evaluator.batches:
        assert 0 < len(edges) <= 40
        assert scores.lhs_pos.shape == scores.rhs_pos.shape == (len(edges),)
        assert scores.lhs_neg.shape[1] == 7 + 9 or len(edges) < 7
    one_sided = Counting()
    do_eval(on(graph, base, 1, disable_lhs_negs=True), evaluator=one_sided)
    assert all(scores.lhs_neg.shape[1] == 0 < scores.rhs_neg.shape[1] for scores, _ in one_sided.batches)
    with pytest.raises(ConfigError, match="no negatives to rank"):
        do_eval(on(graph, base, 1, num_batch_negs=0, num_uniform_negs=0))


def test_filtered_ranking_is_that_of_evaluate(tmp_path, base):
    """The evaluator of PBG's name, and our own stage, which other tests hold against an oracle."""
    everyone = RelationSchema(name="r", lhs="e", rhs="e", operator="diagonal", all_negs=True)
    base = evolve(base, relations=[everyone], num_epochs=5, lr=0.1, batch_size=50, global_emb=False)
    graph = Graph(tmp_path, base, [0.6, 0.2])
    train(on(graph, base, 0))
    config = on(graph, base, 1)
    found = do_eval(config, evaluator=FilteredRankingEvaluator(config, graph.edge_paths))
    theirs = evaluate.evaluate(
        from_mapping(
            config.to_dict()
            | {
                "edge_root": str(tmp_path),
                "edge_paths": graph.edge_paths[:1],
                "evaluate": {"split": "edges1", "filter_paths": graph.edge_paths},
            }
        )
    )
    assert found["metrics"]["mrr"] == pytest.approx(theirs["metrics"]["mrr_pessimistic"], rel=1e-5)
    assert found["metrics"]["mrr"] > do_eval(config)["metrics"]["mrr"]
    with pytest.raises(ConfigError, match="one relation with all_negs"):
        FilteredRankingEvaluator(evolve(config, relations=[evolve(everyone, all_negs=False)]), [])


@pytest.fixture
def imports(near_client, monkeypatch):
    """Imports of text, on a cluster in this process."""
    on_cluster(near_client, monkeypatch, click.Command("unused"))


@pytest.mark.slow
def test_text_is_imported_beside_the_files_of_the_user(tmp_path, base, imports):
    """The folder of the text becomes entity_path, and contains the edge paths, as in PBG's example."""
    data = tmp_path / "data"
    data.mkdir()
    lines = [f"{n} {word}" for n in range(30) for word in (f"likes {n + 1}", f"knows {n // 2}")]
    for name, chosen in (("train", lines[:40]), ("test", lines[40:])):
        (data / f"{name}.txt").write_text("".join(f"{line}\n" for line in chosen))
    config = evolve(
        base,
        entities={"e": EntitySchema(num_partitions=2)},
        relations=[RelationSchema(name=name, lhs="e", rhs="e") for name in ("likes", "knows")],
        entity_path=str(data),
        edge_paths=[str(data / "train_out"), str(data / "test_out")],
    )
    inputs = [data / "train.txt", data / "test.txt"]
    given = (config.entities, config.relations, config.entity_path, config.edge_paths, inputs)
    convert_input_data(*given, 0, 2, 1)
    written = files_under(data)
    assert {"train.txt", "test.txt", "entity_count_e_0.txt"} <= {Path(path).name for path in written}
    assert not (tmp_path / "data.importing").exists()
    assert imported_edges(data, config, "train_out") == {tuple(line.split()) for line in lines[:40]}
    convert_input_data(*given, TSVEdgelistReader(0, 2, 1))
    assert files_under(data) == written
    train(evolve(config, edge_paths=config.edge_paths[:1]))
    assert do_eval(evolve(config, edge_paths=config.edge_paths[1:]))["count"] == 20
    (data / "train_out" / "edges_0_0.h5").unlink()  # as after a kill: the import is done again
    convert_input_data(*given, 0, 2, 1)
    assert files_under(data) == written


def imported_edges(data, config, folder):
    """The edges by raw id, read as PBG reads its own files."""
    ids = [json.loads((data / f"entity_names_e_{part}.json").read_text()) for part in range(2)]
    found = set()
    for lhs, rhs in ((lhs, rhs) for lhs in range(2) for rhs in range(2)):
        with h5py.File(data / folder / f"edges_{lhs}_{rhs}.h5") as hdf5:
            for edge in zip(hdf5["lhs"], hdf5["rel"], hdf5["rhs"], strict=True):
                found.add((ids[lhs][edge[0]], config.relations[edge[1]].name, ids[rhs][edge[2]]))
    return found


class Some(EdgelistReader):
    """Reads edges of which some have no relation; a file without a name has none."""

    def read(self, path):
        return [("a", "b", None), ("b", "c", "knows"), ("c", "a", None)] if path.name else []


def test_edges_without_a_relation_have_the_first(tmp_path, base, imports):
    relations = [RelationSchema(name=name, lhs="e", rhs="e") for name in ("likes", "knows")]
    entities = {"e": EntitySchema(num_partitions=2)}
    config = evolve(base, relations=relations, entities=entities)
    outputs = [str(tmp_path / "out"), str(tmp_path / "none")]
    given = entities, relations, str(tmp_path / "data"), outputs, [Path("some"), Path()]
    convert_input_data(*given, Some())
    expected = {("a", "likes", "b"), ("b", "knows", "c"), ("c", "likes", "a")}
    assert imported_edges(tmp_path / "data", config, outputs[0]) == expected
    assert not imported_edges(tmp_path / "data", config, outputs[1])


def test_wrong_imports_are_refused(tmp_path, base, imports):
    text = tmp_path / "edges.txt"
    text.write_text("a b\nc\n")
    given = (base.entities, base.relations, str(tmp_path / "entities"), [str(tmp_path / "out")], [text])
    with pytest.raises(RawTableError, match=r"edges\.txt: line 2: expected 2 columns, found 1"):
        convert_input_data(*given, 0, 1)
    with pytest.raises(ConfigError, match="expected one output for each input"):
        convert_input_data(*given[:3], [], [text], 0, 1)
    with pytest.raises(ConfigError, match="lhs_col, rhs_col: missing"):
        convert_input_data(*given)
    with pytest.raises(ConfigError, match="expected 1, which keeps all"):
        convert_input_data(*given, 0, 1, entity_min_count=2)


def test_a_file_and_the_texts_of_p_make_a_schema(tmp_path, base):
    path = tmp_path / "config.py"
    raw = {**base.to_dict(), "entity_path": "data", "edge_paths": ["one"]}
    path.write_text(f"def get_torchbiggraph_config():\n    return {raw!r}\n")
    loader = ConfigFileLoader()
    assert Path(loader.config_dir.name).is_dir()
    assert loader.load_config(str(path)) == evolve(base, entity_path="data", edge_paths=["one"])
    texts = ["num_epochs=7", "edge_paths=one,two", "bucket_order=RANDOM", "entities.e.num_partitions=3"]
    for overrides in (texts, iter(texts), [texts[:2], texts[2:]]):  # as release 1.0.0 and HEAD pass them
        config = loader.load_config(str(path), overrides)
        assert (config.num_epochs, config.edge_paths, config.bucket_order) == (7, ["one", "two"], "random")
        assert config.entities["e"].num_partitions == 3
    assert parse_config(override_config_dict(raw, ["lr=1"])).lr == 1
    with pytest.raises(ConfigError, match="-p colour=1: PyTorch-BigGraph has no such key"):
        loader.load_config(str(path), ["colour=1"])
    path.write_text(f"def get_torchbiggraph_config():\n    return {raw | {'train': {'patience': 3}}!r}\n")
    with pytest.raises(ConfigError, match="train: only graphmill's commands take this section"):
        loader.load_config(str(path))
    folder = Path(loader.config_dir.name)
    del loader
    assert not folder.exists()


def test_downloads_are_kept_and_unpacked_beside_themselves(tmp_path):
    packed = tmp_path / "there" / "words.txt.gz"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(b"a b\n"))
    path = download_url(packed.as_uri(), tmp_path / "new")
    assert path == tmp_path / "new" / "words.txt.gz"
    packed.unlink()
    assert download_url(packed.as_uri(), tmp_path / "new") == path
    assert extract_gzip(path).read_text() == "a b\n"
    (tmp_path / "new" / "words.txt").write_text("mine")
    assert extract_gzip(path, remove_finished=True).read_text() == "mine"
    assert not path.exists()
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("../outside.txt"))
    with pytest.raises(tarfile.OutsideDestinationError):
        extract_tar(tmp_path / "a.tgz")


PLUGGED = """
from train.pbg_api import COMPARATORS, AbstractComparator

@COMPARATORS.register_as("of_a_python_program")
class Dot(AbstractComparator):
    def prepare(self, embs):
        return embs

    def forward(self, lhs_pos, rhs_pos, lhs_neg, rhs_neg):
        pairs = (lhs_pos * rhs_pos).sum(-1)
        return pairs, rhs_pos @ lhs_neg.transpose(1, 2), lhs_pos @ rhs_neg.transpose(1, 2)

def get_torchbiggraph_config():
    return RAW
"""


def test_a_plug_in_that_the_file_registers(tmp_path, base):
    graph = Graph(tmp_path, base, [0.4, 0.2])
    raw = on(graph, base, 0).to_dict() | {"num_epochs": 2}
    path = tmp_path / "plugged.py"
    path.write_text(PLUGGED.replace("RAW", repr(raw | {"comparator": "of_a_python_program"})))
    config = ConfigFileLoader().load_config(str(path))
    assert config.comparator == "of_a_python_program"
    train(config)
    other = evolve(config, comparator="dot", checkpoint_path=str(tmp_path / "dot"))
    train(other)
    found = do_eval(evolve(config, edge_paths=graph.edge_paths[1:]))["metrics"]
    assert found["mrr"] == pytest.approx(
        do_eval(evolve(other, edge_paths=graph.edge_paths[1:]))["metrics"]["mrr"], rel=1e-3
    )
