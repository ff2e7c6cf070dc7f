"""`graphmill export` on a finished run: every format and precision, wrong wishes, the loss, the next run."""

import json
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

from graphmill import report, storage
from graphmill.ask.evaluate.evaluate import evaluate
from graphmill.ask.export import job, model
from graphmill.ask.export.settings import ExportOptions
from graphmill.formats import entity_index
from graphmill.formats.edge_buckets import bucket_uri
from graphmill.library.run import Run
from graphmill.vocab import Bucket, Side
from tests.commands import Command
from tests.graphmill.ask.export.readers import read
from tests.graphmill.ask.predict.world import World, write_world


def assert_close(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray], precision: str) -> None:
    assert list(found) == list(wanted)
    if precision == "float32":
        assert all(np.array_equal(found[each], wanted[each]) for each in wanted)
        return
    a, b = np.stack(list(found.values())), np.stack(list(wanted.values()))
    if precision == "float16":
        assert np.array_equal(a, b.astype(np.float16).astype(np.float32))
    elif precision == "int8":
        assert (np.abs(a - b) <= np.ptp(b, axis=0) / 255 * 0.51).all()
    else:  # fewer vectors than centroids: each vector is one
        np.testing.assert_allclose(a, b, rtol=3e-3, atol=3e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "file_format"),
    [
        *((each, "parquet") for each in ("float32", "float16", "int8", "pq")),
        *(("int8", "arrow"), ("float16", "npy"), ("pq", "npy")),
    ],
)
def test_tables(tmp_path: Path, world: World, export: Command, precision: str, file_format: str) -> None:
    to, is_exact = tmp_path / "out", precision == "float32"
    options = [] if is_exact else ["--no-loss"]
    assert export("--precision", precision, "--format", file_format, *options) == 0
    for entity_type in ("user", "item"):
        assert_close(read(to, entity_type), world.by_id(entity_type), precision)
    figures = json.loads((to / "_export.json").read_text())
    assert figures["types"]["user"]["float32_bytes"] == 16 * 6 * 4
    assert ("loss" in figures) != is_exact
    assert not [path for path in tmp_path.rglob("*") if "tmp-" in path.name or path.name == "_work"]
    assert storage.read_marker(str(to)) is not None


@pytest.mark.slow
def test_the_report_names_exports(tmp_path: Path, world: World, export: Command) -> None:
    (tmp_path / "run/report.html").touch()
    for wish in (["--precision", "int8"], ["--precision", "int8", "--no-loss", "--format", "npy"]):
        assert export(*wish, to=wish[-1]) == 0
    assert not (tmp_path / "run/report.html").read_text()  # which `graphmill report` renews
    page = Path(report.write(Run(str(tmp_path / "run")))).read_text()
    loss = json.loads((tmp_path / "int8/_export.json").read_text())["loss"]
    assert all(str(tmp_path / each) in page for each in ("int8", "npy"))
    assert f"{loss['mrr_loss']:.4f}" in page
    assert "--no-loss" in page
    assert export("--precision", "int8", to="int8") == 0  # is there
    assert len(list((tmp_path / "run/results").iterdir())) == 2


def test_a_run_that_cannot_be_written(tmp_path, world, export, caplog):
    (tmp_path / "run/results").write_text("in the way")
    assert export() == 0
    assert "report.html of the run will not name it" in caplog.text


HOSTILE = '{"types": 3, "loss": {"decoded": 1, "mrr_loss": "x"}, "method": "approximate", "columns": {"a":1}}'


def test_hostile_notes_do_not_spoil_a_report(tmp_path: Path, world: World, export: Command) -> None:
    (tmp_path / "run/results").mkdir()
    for kind in ("export", "predict", "features"):
        for number, text in enumerate(("no JSON", "[]", HOSTILE)):
            (tmp_path / f"run/results/{kind}-{number}.json").write_text(text)
    assert export(to="<b>out") == 0
    page = Path(report.write(Run(str(tmp_path / "run")))).read_text()
    assert "<b>out" not in page
    assert "Exports" in page


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float16", "int8", "pq"])
def test_the_loss_is_of_the_files(tmp_path: Path, world: World, near_client: Client, precision: Any) -> None:
    """The vectors that a reader gets, in a checkpoint of their own: `evaluate` says the same of them."""
    num_bytes = 3 if precision == "pq" else None
    wish = ExportOptions(precision=precision, format="npy", types=("item",), num_bytes=num_bytes)
    loss = job.run(world.config, wish, str(tmp_path / "out"), near_client)["loss"]
    exact = evaluate(world.config)["metrics"]
    assert {key: exact[key] for key in loss["exact"]} == loss["exact"]
    assert loss["mrr_loss"] == loss["exact"]["mrr"] - loss["decoded"]["mrr"]
    assert loss["num_edges"] == len(world.edges["test"])
    assert {each.name for each in (tmp_path / "out").iterdir() if each.is_dir()} == {"item"}
    assert not (tmp_path / "run/calibration.json").exists()
    rows = np.stack(list(read(tmp_path / "out", "item").values()))
    world.write_rows("item", rows - world.model.parameters["global_embs.emb_item"].numpy())
    for checksums in Path(world.config.checkpoint_path).glob("checksums*"):
        checksums.unlink()
    decoded = evaluate(world.config)["metrics"]
    assert {key: decoded[key] for key in loss["decoded"]} == loss["decoded"]


@pytest.mark.slow
def test_other_edges_to_rank_are_another_export(tmp_path: Path, world: World, near_client: Client) -> None:
    def num_edges() -> int:
        found = job.run(world.config, ExportOptions(precision="int8"), str(tmp_path / "out"), near_client)
        return int(found["loss"]["num_edges"])

    before = num_edges()
    test, train = (bucket_uri(world.config.split_path(each), Bucket(0, 0)) for each in ("test", "train"))
    Path(test).write_bytes(Path(train).read_bytes())
    assert num_edges() != before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "comparator"),
    [
        *(("float32", "dot"), ("float32", "cos"), ("float16", "cos"), ("int8", "cos"), ("int8", "l2")),
        ("pq", "dot"),
    ],
)
def test_faiss(tmp_path: Path, export: Command, precision: str, comparator: str) -> None:
    world = write_world(tmp_path / "run", comparator=comparator, num_partitions=3)
    arguments = ["--precision", precision, "--format", "faiss"]
    measured = comparator == "cos" and precision == "int8"
    assert export(*arguments, *([] if measured else ["--no-loss"])) == 0
    if measured:  # lengths do not count
        loss = json.loads((tmp_path / "out/_export.json").read_text())["loss"]
        assert abs(loss["mrr_loss"]) < 0.02
    index = faiss.read_index(str(tmp_path / "out/item/vectors.faiss"))
    ids = pq.read_table(tmp_path / "out/item/ids.parquet")["id"].to_pylist()
    is_inner = comparator in ("dot", "cos")
    assert index.metric_type == (faiss.METRIC_INNER_PRODUCT if is_inner else faiss.METRIC_L2)
    wanted = world.by_id("item")
    if comparator == "cos":
        wanted = {key: row / np.linalg.norm(row) for key, row in wanted.items()}
    found = dict(zip(ids, index.reconstruct_n(0, len(ids)), strict=True))
    if comparator == "cos" and precision == "float32":
        np.testing.assert_allclose(np.stack(list(found.values())), np.stack(list(wanted.values())), rtol=1e-6)
        return
    if precision == "float16" and comparator == "cos":
        precision = "pq"  # with its tolerance: a half of a rounded quotient
    assert_close(found, wanted, precision)
    _, near = index.search(np.stack(list(wanted.values()))[3:4], 30)
    assert near.shape == (1, 30)


@pytest.mark.slow
def test_faiss_decodes_as_the_codec_does(tmp_path: Path, near_client: Client) -> None:
    """Pieces of unequal length (D = 6, 4 codes): the index pads them, and gives back what was measured."""
    world = write_world(tmp_path / "run", counts={"user": [20], "item": [700]})
    wish = ExportOptions(precision="pq", format="faiss", num_bytes=4)
    job.run(world.config, wish, str(tmp_path / "out"), near_client)
    index = faiss.read_index(str(tmp_path / "out/item/vectors.faiss"))
    table = np.load(tmp_path / "out/item/_centroids.npy").astype(np.float32)
    rows = index.reconstruct_n(0, 700)
    piece = np.arange(6) * 4 // 6
    for number in range(4):
        own = rows[:, piece == number]
        distances = np.abs(own[:, None] - table[None][:, :, piece == number]).max(-1)
        assert distances.min(1).max() == 0  # each is a centroid
    assert np.square(rows - world.vectors["item"]).mean() < 0.05


def test_projector(tmp_path: Path, world: World, export: Command) -> None:
    assert export("--format", "tensorboard-projector", "--limit", 5) == 0
    config = json.loads((tmp_path / "out/projector_config.json").read_text())["embeddings"]
    assert [each["tensorShape"] for each in config] == [[5, 6], [5, 6]]
    degrees = dict.fromkeys(range(sum(world.counts["item"])), 0)
    for _, rel, rhs in world.edges["train"]:
        if rel == 0:
            degrees[rhs] += 1
    lines = (tmp_path / "out" / config[1]["metadataPath"]).read_text().splitlines()
    most = sorted(degrees, key=lambda each: (-degrees[each], each))[:5]
    assert lines == ["id\tedges", *(f"{world.name('item', each)}\t{degrees[each]}" for each in most)]
    vectors = np.loadtxt(tmp_path / "out" / config[1]["tensorPath"], delimiter="\t", dtype=np.float32)
    assert np.array_equal(vectors, world.vectors["item"][most])
    assert 'tensor_path: "item/vectors.tsv"' in (tmp_path / "out/projector_config.pbtxt").read_text()


@pytest.mark.parametrize(
    ("operator", "comparator", "dynamic"),
    [
        ("none", "dot", False),
        ("complex_diagonal", "dot", True),
        ("linear", "dot", False),
        ("linear", "l2", True),
        ("translation", "cos", True),
        ("diagonal", "squared_l2", False),
    ],
)
def test_the_formulas_of_the_model_score(tmp_path, near_client, operator, comparator, dynamic):
    world = write_world(tmp_path / "run", operator=operator, comparator=comparator, dynamic=dynamic)
    job.run(world.config, ExportOptions(), str(tmp_path / "out"), near_client)
    model = json.loads((tmp_path / "out/_model.json").read_text())
    vectors = {name: read(tmp_path / "out", name) for name in ("user", "item")}
    relation = model["relations"][0]
    own = pq.read_table(tmp_path / "out/_relations.parquet").to_pylist()
    own = [each for each in own if each["relation"] == relation["name"]]
    names: dict[str, Any] = {"sum": np.sum, "norm": np.linalg.norm}
    lhs, rhs = list(vectors["user"].values())[3], list(vectors["item"].values())[4]

    def operate(x: np.ndarray, side: str) -> Any:
        values = {
            each["parameter"].removesuffix("s"): np.reshape(each["values"], each["shape"])
            for each in own
            if each["side"] == side
        }
        formula = model["operators"][relation["operator"]].split(": ")[-1]
        halves = {"re": x[: len(x) // 2], "im": x[len(x) // 2 :]}
        if "re *" in formula:
            first, second = formula.strip("[]").split(", ")
            return np.concatenate([eval(each, {}, halves | values) for each in (first, second)])
        return eval(formula, {}, {"x": x} | values)

    def compare(a: np.ndarray, b: np.ndarray) -> Any:
        return eval(model["score"]["compare(a, b)"], names, {"a": a, "b": b})

    key = "rhs answers" if dynamic else "edge"
    scope = {"compare": compare, "operator": operate, "lhs": lhs, "rhs": rhs}
    wanted = world.scores(0, Side.RHS)[3, 4]
    assert eval(model["score"][key], scope) == pytest.approx(wanted, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("raw_id", ["a b", "a\nb", "\u3000", "100%"])
def test_ids_with_white_space(tmp_path: Path, export: Command, raw_id: str, capsys: Any) -> None:
    world = write_world(tmp_path / "run")
    with entity_index.new_part(world.config.entity_path, "user", 0) as writer:
        writer.append(pa.array([raw_id, *(f"u{number}" for number in range(1, 16))]))
    arguments = ["--format", "word2vec"]
    is_plain = raw_id == "100%"
    assert export(*arguments) == (0 if is_plain else 2)
    if not is_plain:
        assert f"'user' has the id {raw_id!r}; readers cut lines at spaces" in capsys.readouterr().err
        assert not [each for each in tmp_path.iterdir() if each.name != "run"]
    assert export(*arguments, "--escape-ids") == 0
    assert next(iter(read(tmp_path / "out", "user"))) == raw_id
    assert export(to="tables") == 0
    assert next(iter(read(tmp_path / "tables", "user"))) == raw_id


def test_cos_with_lengths_that_matter(tmp_path: Path, export: Command, capsys: Any) -> None:
    write_world(tmp_path / "run", comparator="cos", operator="translation")
    assert export("--format", "faiss") == 2
    assert "the operator translation needs their lengths" in capsys.readouterr().err


def test_no_loss_where_there_is_nothing_to_rank(tmp_path: Path, export: Command) -> None:
    write_world(tmp_path / "run", splits=["train"])
    assert export("--precision", "int8") == 0
    loss = json.loads((tmp_path / "out/_export.json").read_text())["loss"]
    assert "there is no folder" in loss["not_measured"]
    assert export("--precision", "int8", "--no-loss") == 0
    loss = json.loads((tmp_path / "out/_export.json").read_text())["loss"]
    assert loss == {"not_measured": "--no-loss"}


@pytest.mark.slow
def test_a_finished_export_is_not_made_again(tmp_path: Path, world: World, near_client: Client) -> None:
    to, wish = tmp_path / "out", ExportOptions(precision="int8", is_measured=False)
    first = job.run(world.config, wish, str(to), near_client)
    stamp = (to / "_export.json").stat().st_mtime_ns
    assert job.run(world.config, wish, str(to), near_client) == first
    assert (to / "_export.json").stat().st_mtime_ns == stamp
    other = ExportOptions(precision="pq", format="npy", is_measured=False)
    job.run(world.config, other, str(to), near_client)  # replaces the first
    assert sorted(path.name for path in (to / "item").iterdir())[0] == "_centroids.npy"


@pytest.mark.hdfs
def test_goes_on_where_stopped(near_client: Client, monkeypatch: pytest.MonkeyPatch, hdfs_uri: str) -> None:
    """Ctrl-C after the pieces: the next run has the same files, with the times of the first."""
    world = write_world(f"{hdfs_uri}/run", num_partitions=3)
    wish = ExportOptions(precision="pq", is_measured=False)

    def stop(*_: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(model, "write_relation_parameters", stop)
        with pytest.raises(KeyboardInterrupt):
            job.run(world.config, wish, f"{hdfs_uri}/out", near_client)
    (work,) = [uri for uri in storage.list_hidden(hdfs_uri) if storage.name(uri).startswith(".out.tmp-")]
    before = _times(work)
    assert len([each for each in before if "part-" in each]) == 6
    job.run(world.config, wish, f"{hdfs_uri}/out", near_client)
    after = _times(f"{hdfs_uri}/out")
    assert {each: time for each, time in before.items() if "_work" not in each}.items() <= after.items()
    assert storage.list_hidden(hdfs_uri) == []


def _times(folder: str) -> dict[str, int]:
    return {
        each.uri.removeprefix(folder): each.mtime_ns
        for each in storage.list_dir(folder, recursive=True)
        if not each.is_dir
    }
