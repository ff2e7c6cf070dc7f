"""PyTorch-BigGraph's users bring its examples, its import, its export; each works here by itself."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from distributed import Client

from graphmill import config as configuration
from graphmill.ask.evaluate import evaluate
from graphmill.formats import edge_buckets
from graphmill.vocab import Bucket
from remap import job as remap_job
from tests.commands import Command
from tests.etl.graphs import files_under
from tests.interop.pbg import Pbg, examples, told
from train import job as train_job
from train.step.held_out import RandomPairs

pytestmark = [pytest.mark.interop, pytest.mark.slow]

SMALL = ["num_epochs=2", "dimension=8", "num_uniform_negs=10", "workers=1"]
COLUMNS = {
    "fb15k_config.py": ["-l", "0", "-r", "2", "--rel-col", "1"],
    "livejournal_config.py": ["-l", "0", "-r", "1"],
}


@pytest.fixture
def example(python, tmp_path, monkeypatch, request):
    """An example of PBG as it ships, in a folder with tables like those of the example."""
    monkeypatch.chdir(tmp_path)
    Path("config.py").write_text((examples(python) / "configs" / request.param).read_text())
    rng = np.random.default_rng(0)
    files = []
    folder = Path("data/FB15k" if "fb15k" in request.param else "data")
    folder.mkdir(parents=True)
    for number, _ in enumerate(configuration.load("config.py").edge_paths):
        edges = [(a, r, (a + 3 * r + 1) % 40) for a, r in rng.integers(0, [40, 3], (150, 2)).tolist()]
        words = [(f"/m/0{a}", f"/people/person/r.{r}", f"/m/0{b}") for a, r, b in edges]
        words = words if "fb15k" in request.param else [(lhs, rhs) for lhs, _, rhs in words]
        files.append(str(folder / f"{number}.txt"))
        Path(files[-1]).write_text("".join("\t".join(each) + "\n" for each in words))
    return COLUMNS[request.param], files


EXAMPLES = pytest.mark.parametrize("example", list(COLUMNS), indirect=True)


@EXAMPLES
def test_we_train_on_what_pbg_has_imported_for_its_example(example, python, tmp_path, near_client):
    columns, files = example
    theirs = Pbg(python, tmp_path / "pbg")
    theirs.call("torchbiggraph.converters.import_from_tsv", *columns, "config.py", *files)
    before = files_under("data")
    entity_path = configuration.load("config.py").entity_path
    for num_epochs in (2, 3):  # in a folder of PBG's input: a checkpoint there is no other input
        config = configuration.load(
            "config.py", [*SMALL, f"checkpoint_path={entity_path}/model", f"num_epochs={num_epochs}"]
        )
        assert train_job.run(config, near_client)["first_version"] == (num_epochs - 2) * 2 * len(
            config.edge_paths
        )
        Path(entity_path, "notes.txt").write_text(str(num_epochs))
    assert evaluate.evaluate(config)["metrics"]["num_edges"] == 150
    remap_job.run(config, near_client)
    (entity_type,) = config.entities
    ids = pq.read_table(f"{config.embedding_path}/{entity_type}")["id"].to_pylist()
    assert sorted(ids) == sorted(f"/m/0{number}" for number in range(40))
    now = files_under("data")
    assert {name: now[name] for name in before} == before


@EXAMPLES
def test_pbg_exports_what_we_have_imported_and_trained(
    example: Any, python: Path, tmp_path: Path, near_client: Client, graphmill_command: Command
) -> None:
    """The vectors and parameters are those of remap; names of relations need no `dynamic_relations`."""
    columns, files = example
    own = files_under(".")
    assert graphmill_command("etl", "config.py", *columns, *files) == 0
    operator = "complex_diagonal" if "--rel-col" in columns else "diagonal"
    config = configuration.load(
        "config.py", [*SMALL, f"relations.0.operator={operator}", "remap.relations=true", "lr=0.1"]
    )
    assert config.split_path("test") == config.edge_paths[-1]
    assert edge_buckets.count_edges(config.split_path("test"), Bucket(0, 0)) == 150
    train_job.run(config, near_client)
    assert evaluate.evaluate(config)["metrics"]["num_edges"] == 150
    remap_job.run(config, near_client)
    now = files_under(".")
    assert {name: now[name] for name in own} == own  # the example's own files stay as they are
    theirs = Pbg(python, tmp_path / "pbg")
    outputs = ["--entities-output", "entities.tsv", "--relation-types-output", "relations.tsv"]
    theirs.call("torchbiggraph.converters.export_to_tsv", str(theirs.written(config.pbg())), *outputs)

    exported = _table("entities.tsv", 1)
    entity_type = next(iter(config.entities))
    ours = pq.read_table(f"{config.embedding_path}/{entity_type}").to_pydict()
    assert {name[0] for name in exported} == set(ours["id"])
    for name, vector in zip(ours["id"], ours["embedding"], strict=True):
        np.testing.assert_allclose(exported[name,], vector, atol=1e-8)
    relations = _table("relations.tsv", 5)
    for row in pq.read_table(f"{config.embedding_path}/_relations.parquet").to_pylist():
        shape = "x".join(map(str, row["shape"]))
        key = row["relation"], row["side"], row["operator"], row["parameter"].removesuffix("s"), shape
        found = relations.get(key) or relations[key[0], key[1], key[2], row["parameter"], shape]
        np.testing.assert_allclose(found, row["values"], atol=1e-8)


def _table(path: str, num_keys: int) -> dict[tuple[str, ...], list[float]]:
    rows = [line.split("\t") for line in Path(path).read_text().splitlines()]
    return {tuple(row[:num_keys]): list(map(float, row[num_keys:])) for row in rows}


# PBG's evaluator on scores with ties and masked negatives, many times: the mean of its auc.
AUC = """
import torch
from torchbiggraph.eval import RankingEvaluator
from torchbiggraph.model import Scores
torch.manual_seed(0)
pos, neg = torch.load("scores.pt")
found = [RankingEvaluator().eval(Scores(pos, pos, neg, -neg), pos).metrics["auc"] for _ in range(400)]
print(sum(found) / len(found) / len(pos))
"""


def test_auc_is_what_pbg_calls_so(python: Path, tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(3)
    pos_P, neg_PM = (torch.randint(6, shape, generator=draw).float() for shape in ((50,), (50, 20)))
    neg_PM[:, 0] = -1e9
    torch.save((pos_P, neg_PM), tmp_path / "scores.pt")
    (tmp_path / "auc.py").write_text(AUC)
    theirs = float(told(python, tmp_path, "auc.py"))
    generator, found = torch.Generator().manual_seed(0), 0
    for _ in range(400):
        for negatives in (neg_PM, -neg_PM):
            pairs = RandomPairs(1, generator)
            pairs.add(pos_P[None], negatives[None])
            found += pairs.num_in_order()
    assert found / (2 * 400 * 50) == pytest.approx(theirs, abs=4 * 0.5 * (2 / 40_000) ** 0.5)
