"""GraphStorm itself works on our files, and we on its: remap, saved models, HDF5."""

import json
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from distributed import Client

from etl import job as etl_job
from graphmill import config as configuration
from graphmill.checkpoints import ModelState, open_checkpoint, writer_of
from graphmill.convert import convert
from graphmill.model import comparators
from graphmill.model.operators import operator_of
from remap import job as remap_job
from tests.graphmill.checkpoints.samples import MemoryCheckpoint
from tests.interop import environments
from tests.remap.saved import Cli
from tests.train.graphs import USUAL
from train import job as train_job

pytestmark = [pytest.mark.interop, pytest.mark.slow]

D = 8
COUNTS = {"user": [5, 4], "item": [7]}
RELATIONS = [("user", "likes", "item"), ("user", "knows", "user"), ("item", "a/b: c", "item")]
EDGES = {",".join(each): ([0, 3, 2], [1, 2, 3]) for each in RELATIONS}
PROGRAM = Path(__file__).with_name("graphstorm_program.py")
MODULES = ("dgl", "graphstorm.config", "graphstorm.gconstruct.construct_graph", "graphstorm.model")
REQUIREMENTS = (
    "graphstorm==0.5.1",
    "dgl==1.1.3",  # later ones load a library that is compiled for one torch
    *(f"autogluon.{part}==1.4.0" for part in ("common", "core", "features", "tabular")),
    *("transformers==4.48.0", "tokenizers==0.21.4", "huggingface-hub==0.36.0", "torchdata==0.9.0"),
    *("boto3", "einops", "einx", "littleutils", "loguru", "ogb==1.3.6", "omegaconf", "outdated", "regex"),
    *("six", "tqdm"),
)


@pytest.fixture(scope="module")
def python() -> Path:
    """The interpreter of an environment with GraphStorm, of wheels that bring no dependencies along."""
    wheels = ("--no-deps", "--only-binary", ":all:", *REQUIREMENTS)
    try:
        return environments.make(".venv-graphstorm", wheels, check="graphstorm.gconstruct.remap_result")
    except environments.NotInstallableError as error:
        pytest.skip(f"no GraphStorm: {error}")


def call(python: Path, action: str, **arguments: Any) -> Any:
    words = [str(PROGRAM), action, json.dumps(arguments)]
    text = environments.told(python, MODULES, PROGRAM.parent, *words)
    return json.loads(text.rpartition("result: ")[2].splitlines()[0])


FORMS = ("plain", "half", "double", "integer", "one", "one_half", "expanded", "one_expanded")
RUNS = [
    *(("--node-emb-dir", f"emb-{form}") for form in FORMS),
    *(("--prediction-dir", name) for name in ("pred-node", "pred-edge")),
]
REMAPS: dict[str, tuple[list[tuple[str, str]], tuple[str, ...]]] = {
    "parquet": (RUNS, ()),
    "csv": (RUNS[::3], ("--output-chunk-size", "7", "--output-format", "csv")),
}


@pytest.fixture(scope="module")
def outputs(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of GraphStorm in `given`, and beside it those that its remap makes of them."""
    folder = tmp_path_factory.mktemp("outputs")
    remapped = {str(folder / name): each for name, each in REMAPS.items()}
    call(python, "outputs", folder=str(folder / "given"), remapped=remapped)
    return folder


@pytest.mark.parametrize("name", REMAPS)
def test_remap_writes_what_graphstorm_s_writes(outputs: Path, tmp_path: Path, cli: Cli, name: str) -> None:
    given, ours = outputs / "given", tmp_path / "ours"
    shutil.copytree(given, ours)
    runs, more = REMAPS[name]
    for flag, folder in runs:
        assert cli("--node-id-mapping", ours / "raw_id_mappings", flag, ours / folder, *more) == 0
        # rows of some ids alone: ours keeps what it has read
        kept = [each.relative_to(given / folder) for each in (given / folder).rglob("*.pt")]
        compare(ours / folder, outputs / name / folder, kept if folder == "pred-node" else ())


def test_hdf5_embeddings_of_graphstorm(outputs: Path, tmp_path: Path, cli: Cli) -> None:
    """GraphStorm's own remap cannot read them."""
    plain = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    outputs = outputs / "given"
    done = convert(str(outputs / "emb-hdf5"), str(tmp_path / "pbg"), "pbg")
    np.testing.assert_array_equal(done.target.read_embeddings("user", 0), plain.numpy())
    flags = ["--node-id-mapping", outputs / "raw_id_mappings", "--node-emb-dir", outputs / "emb-hdf5"]
    assert cli(*flags, "--output-dir", tmp_path / "out", "--preserve-input", "true") == 0
    found = pq.read_table(tmp_path / "out/item/embed-00000_00000.parquet")
    maps = pq.read_table(outputs / "raw_id_mappings/item/part-00000.parquet").sort_by("new")
    assert found["nid"].to_pylist() == maps["orig"].to_pylist()
    assert found["emb"].to_pylist() == plain[:20].tolist()


def compare(ours: Path, theirs: Path, kept: Collection[Path]) -> None:
    """The same files, but for `kept` and our mark of a complete folder; the same types and rows in order."""
    names = {path.relative_to(theirs) for path in theirs.rglob("*") if path.is_file()}
    written = {path.relative_to(ours) for path in ours.rglob("*") if path.is_file()}
    assert written == names | {Path("_SUCCESS"), *kept}
    for name in names:
        if name.suffix == ".parquet":
            found, expected = pq.read_table(ours / name), pq.read_table(theirs / name)
            assert found.schema.remove_metadata() == expected.schema.remove_metadata()
            assert found.to_pydict() == expected.to_pydict()
        elif name.suffix == ".csv":
            texts = [(each / name).read_text().replace(";", ",") for each in (ours, theirs)]
            lines, others = ([line.split(",") for line in text.splitlines()] for text in texts)
            for line, other in zip(lines, others, strict=True):
                assert list(map(value_of, line)) == list(map(value_of, other))


def value_of(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def trained(operator: str, comparator: str) -> MemoryCheckpoint:
    """A checkpoint as our trainer makes it; the last relation has no operator."""
    rng = np.random.default_rng(1)
    tables = {
        name: [(rng.standard_normal((count, D), np.float32), None) for count in counts]
        for name, counts in COUNTS.items()
    }
    used = [operator, operator, "none"]
    ends = [{"name": name, "lhs": lhs, "rhs": rhs} for lhs, name, rhs in RELATIONS]
    relations = [own | {"operator": each} for own, each in zip(ends, used, strict=True)]
    generator = torch.Generator().manual_seed(0)
    parameters = {
        f"rhs_operators.{number}.{name}": value
        for number, each in enumerate(used)
        for name, value in operator_of(each).initial(D, None, "random", 1.0, generator).items()
    }
    parameters |= {f"global_embs.emb_{name}": torch.randn(D, generator=generator) for name in COUNTS}
    config = {
        "entities": {name: {"num_partitions": len(counts)} for name, counts in COUNTS.items()},
        "relations": relations,
        "dimension": D,
        "comparator": comparator,
        "global_emb": True,
    }
    return MemoryCheckpoint(tables, ModelState(parameters, None), config, None)


def rows_of(checkpoint: Any) -> dict[str, torch.Tensor]:
    """The vectors of all entities, by integer id."""
    rows = {}
    for name, counts in checkpoint.counts.items():
        parts = [checkpoint.read_embeddings(name, part) for part in range(len(counts))]
        added = checkpoint.read_model().parameters.get(f"global_embs.emb_{name}", 0)
        rows[name] = torch.from_numpy(np.concatenate(parts)) + added
    return rows


def scores_of(checkpoint: Any) -> dict[str, list[float]]:
    """Our scores of the edges."""
    model, config, rows = checkpoint.read_model(), checkpoint.config, rows_of(checkpoint)
    found = {}
    for number, each in enumerate(config["relations"]):
        edge_type = ",".join((each["lhs"], each["name"], each["rhs"]))
        src, dst = EDGES[edge_type]
        names = operator_of(each["operator"]).parameter_names(False)
        parameters = [model.parameters[f"rhs_operators.{number}.{name}"] for name in names]
        moved = operator_of(each["operator"]).apply(rows[each["rhs"]][dst], parameters)
        pair = [
            comparators.prepare(config["comparator"], False, side) for side in (rows[each["lhs"]][src], moved)
        ]
        found[edge_type] = comparators.edge_scores(config["comparator"], False, *pair).tolist()
    return found


CASES = {
    "diagonal": ("dot", 0.0),
    "translation": ("l2", 12.0),
    "none": ("dot", 0.0),
    "rotation": ("l2", 12.0),
}


class Restored(NamedTuple):
    """A model of ours, GraphStorm's scores by it, and those after GraphStorm trained and saved it."""

    uri: str
    before: dict[str, list[float]]
    after: dict[str, list[float]]


@pytest.fixture(scope="module")
def restored(python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Restored]:
    folder = tmp_path_factory.mktemp("models")
    models = {operator: str(folder / operator) for operator in CASES}
    for operator, (comparator, _) in CASES.items():
        writer_of("graphstorm-model")(trained(operator, comparator), models[operator])
    counts = {name: sum(each) for name, each in COUNTS.items()}
    arguments = {"models": list(models.values()), "edges": EDGES, "counts": counts, "dimension": D}
    found = call(python, "restore", **arguments)
    return {each: Restored(models[each], *both) for each, both in zip(models, found, strict=True)}


def check_scores(found: Mapping[str, list[float]], ours: Mapping[str, list[float]], gamma: float) -> None:
    for edge_type, scores in ours.items():
        assert found[edge_type] == pytest.approx([each + gamma for each in scores], rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("operator", ["diagonal", "translation", "none"])
def test_both_score_alike_by_the_model_of_the_other(restored, tmp_path, operator):
    """GraphStorm restores our model; we read the one that it has trained and saved."""
    (comparator, gamma), (model, before, after) = CASES[operator], restored[operator]
    check_scores(before, scores_of(trained(operator, comparator)), gamma)
    if operator == "none":  # GraphStorm names no relations of its dot product
        shutil.copy(f"{model}/relation2id_map.json", f"{model}-after")
    done = convert(f"{model}-after/epoch-1", str(tmp_path / "pbg"), "pbg")
    assert done.not_kept == []
    back = open_checkpoint(str(tmp_path / "pbg"))
    assert {each["operator"] for each in back.config["relations"]} == {operator}
    check_scores(after, scores_of(back), gamma)
    if operator != "none":
        assert after != before  # Adam has moved the relations


def test_rotations_reach_rotate_with_the_same_angles(restored: dict[str, Restored]) -> None:
    """GraphStorm adds moduli, where our distance takes the root of their squares."""
    source = trained("rotation", "l2")
    users, angle = rows_of(source)["user"], source.read_model().parameters["rhs_operators.1.angle"]
    src, dst = EDGES["user,knows,user"]
    difference = users[src] - operator_of("rotation").apply(users[dst], [angle])
    expected = 12.0 - torch.complex(*difference.chunk(2, -1)).abs().sum(-1)
    found = restored["rotation"].before["user,knows,user"]
    assert found == pytest.approx(expected.tolist(), rel=1e-4, abs=1e-4)
    back = open_checkpoint(restored["rotation"].uri)
    turned = back.read_model().parameters
    numbers = [each["name"] for each in back.config["relations"]]
    torch.testing.assert_close(turned[f"rhs_operators.{numbers.index('knows')}.angle"].cos(), angle.cos())


def test_a_user_of_graphstorm_moves_here_and_back(python: Path, tmp_path: Path, near_client: Client) -> None:
    """From gconstruct's edges to raw-id parquet; back as gconstruct's features, and as a saved model."""
    rng = np.random.default_rng(0)
    likes = {"who": [f"u{each}" for each in rng.integers(0, 30, 200)], "what": rng.integers(0, 20, 200)}
    knows = {"who": likes["who"], "whom": likes["who"][::-1]}
    likes["what"] = [f"i{each}" for each in likes["what"]]
    for name, columns in (("likes", likes), ("knows", knows)):
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    config = configuration.from_mapping(moved_here(tmp_path))
    for stage in (etl_job, train_job, remap_job):
        stage.run(config, near_client)
    vectors = {}
    for name in ("user", "item"):
        found = pq.read_table(tmp_path / f"run/embeddings/{name}").to_pydict()
        vectors[name] = dict(zip(found["id"], found["embedding"], strict=True))

    (tmp_path / "gconstruct.json").write_text(json.dumps(gconstruct_config(tmp_path)))
    flags = ["--conf-file", tmp_path / "gconstruct.json", "--output-dir", tmp_path / "graph"]
    more = ["--graph-name", "g", "--num-parts", 1, "--num-processes", 1]
    words = ["-m", "graphstorm.gconstruct.construct_graph", *flags, *more]
    environments.told(python, MODULES, tmp_path, *map(str, words))
    sides = {
        "user,likes,item": (("user", likes["who"]), ("item", likes["what"])),
        "user,knows,user": (("user", knows["who"]), ("user", knows["whom"])),
    }
    model = str(next((tmp_path / "model").iterdir()))
    back = call(python, "moved", graph=str(tmp_path / "graph"), model=model, sides=sides, dimension=D)
    for name, ids in back["ids"].items():
        assert {raw: back["features"][name][number] for raw, number in ids.items()} == vectors[name]
    state = open_checkpoint(config.checkpoint_path).read_model()
    for number, (edge_type, both) in enumerate(sides.items()):
        lhs, rhs = (np.array([vectors[kind][raw] for raw in column]) for kind, column in both)
        diagonal = state.parameters[f"rhs_operators.{number}.diagonal"].numpy()
        assert back["scores"][edge_type] == pytest.approx(
            (lhs * diagonal * rhs).sum(1).tolist(), rel=1e-4, abs=1e-4
        )


def moved_here(folder: Path) -> dict[str, Any]:
    """Our configuration of the graph."""
    relations = [("user", "likes", "item", "what"), ("user", "knows", "user", "whom")]
    tables = [
        {"path": str(folder / f"{name}.parquet"), "lhs": "who", "rhs": column, "relation": name}
        for _, name, _, column in relations
    ]
    return USUAL | {
        "output": str(folder / "run"),
        "entities": {"user": {"num_partitions": 2}, "item": {"num_partitions": 1}},
        "relations": [
            {"name": name, "lhs": lhs, "rhs": rhs, "operator": "diagonal"} for lhs, name, rhs, _ in relations
        ],
        "etl": {"tables": tables},
        "dimension": D,
        "global_emb": True,
        "train": {"save_model_path": str(folder / "model")},
    }


def gconstruct_config(folder: Path) -> dict[str, Any]:
    """GraphStorm's configuration of the same edges; nodes and features come from our tables."""
    feature = {"feature_col": "embedding", "feature_name": "embedding"}
    of_nodes = {"node_id_col": "id", "format": {"name": "parquet"}, "features": [feature]}
    of_edges = {"source_id_col": "who", "format": {"name": "parquet"}}
    nodes = [
        of_nodes | {"node_type": name, "files": f"{folder}/run/embeddings/{name}/*.parquet"}
        for name in ("user", "item")
    ]
    edges = [
        of_edges | {"dest_id_col": column, "relation": relation, "files": f"{folder}/{relation[1]}.parquet"}
        for relation, column in ((["user", "likes", "item"], "what"), (["user", "knows", "user"], "whom"))
    ]
    return {"version": "gconstruct-v0.1", "nodes": nodes, "edges": edges}
