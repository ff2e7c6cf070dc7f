"""PBG's example scripts run with our modules after a change of import lines, and go on with PBG's own."""

import gzip
import io
import json
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest

from graphmill.errors import ConfigError
from tests import DATA
from tests.interop import pbg
from train import pbg_api

pytestmark = [pytest.mark.interop, pytest.mark.slow]

FIGURES = re.compile(r"pos_rank:  (\S+) , mrr:  (\S+) , r1:  (\S+) , r10:  (\S+)")
IMPORT = re.compile(r"^from torchbiggraph\.\S+ import", flags=re.MULTILINE)

# The evaluation of a script, with PBG's modules: its whole scripts need an older Python.
EVALUATION = """
import logging, sys, attr
from torchbiggraph.config import ConfigFileLoader
from torchbiggraph.eval import do_eval
from torchbiggraph.filtered_eval import FilteredRankingEvaluator

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    config = ConfigFileLoader().load_config(sys.argv[1], sys.argv[2:])
    relations = [attr.evolve(each, all_negs=True) for each in config.relations]
    paths = config.edge_paths
    config = attr.evolve(config, edge_paths=paths[-1:], relations=relations, num_uniform_negs=0)
    do_eval(config, evaluator=FilteredRankingEvaluator(config, paths))
"""


# What PBG's loader makes of a configuration with each of several lists of `-p`; null where it refuses one.
LOADING = """
import json
from torchbiggraph.config import ConfigFileLoader

def load(overrides):
    try:
        return ConfigFileLoader().load_config("config.py", overrides).to_dict()
    except (Exception, SystemExit):
        return None

print(json.dumps([load(each) for each in json.load(open("lists.json"))]))
"""
CONFIG = {
    "entities": {"user": {"numPartitions": 1}, "item": {"num_partitions": 1, "featurized": 0}},
    "relations": [{"name": "buys", "lhs": "user", "rhs": "item", "all_negs": "Yes"}],
    "dimension": 4,
    "entity_path": "entities",
    "edge_paths": ["edges"],
    "checkpoint_path": "model",
    "bucket_order": "OUTSIDE_IN",
    "globalEmb": "off",
}
TEXTS = [
    *("edge_paths=one", "edge_paths=one,two words", "entity_path=007", "bucket_order=INSIDE_OUT"),
    *("bucket_order=Affinity", "bucket_order=zigzag", "global_emb=Off", "bias=1", "bias=2", "bias=maybe"),
    *("lr=1", "lr=1e-3", "lr=fast", "dimension=8", "dimension=8.0", "dimension=-8", "max_norm=1.5"),
    *("entities.user.num_partitions=4", "entities.new.num_partitions=4", "relations.0.operator=diagonal"),
    *("relations.0.weight=0", "relations.7.weight=1", "relations.0=x", "relations=a,b", "colour=1", "lr"),
    *("init_path=somewhere", "num_epochs=", "eval_fraction=0.5", "disable_lhs_negs=true"),
]


def run(python: Path, text: str, folder: Path, *arguments: str) -> list[float]:
    """Run a program; the last figures that it logs."""
    (folder / "script.py").write_text(text)
    told = pbg.told(python, folder, "script.py", *arguments)
    return [float(each) for each in FIGURES.findall(told)[-1]]


def with_our_imports(script: Path) -> str:
    text, changed = IMPORT.subn("from train.pbg_api import", script.read_text())
    assert changed > 4
    assert not re.search(r"^(from|import) torchbiggraph", text, flags=re.MULTILINE)
    return text


def test_fb15k(tmp_path: Path, python: Path) -> None:
    """Import, training and filtered ranking; PBG takes the same files, and measures the same."""
    (tmp_path / "data").mkdir()
    rng = np.random.default_rng(0)
    with tarfile.open(tmp_path / "data" / "fb15k.tgz", "w:gz") as archive:
        for name, count in (("train", 400), ("valid", 40), ("test", 40)):
            triples = rng.integers(0, [30, 5, 30], (count, 3))
            text = "".join(f"/m/{lhs}\t/people/r{rel}\t/m/{rhs}\n" for lhs, rel, rhs in triples).encode()
            member = tarfile.TarInfo(f"FB15k/freebase_mtr100_mte100-{name}.txt")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    params = ("num_epochs=2", "dimension=20", "num_uniform_negs=20", "workers=1")
    ours = run(python, with_our_imports(pbg.examples(python) / "fb15k.py"), tmp_path, "-p", *params)
    config = str(pbg.examples(python) / "configs" / "fb15k_config.py")
    assert ours == pytest.approx(run(python, EVALUATION, tmp_path, config, *params), rel=1e-4)
    assert (tmp_path / "model" / "fb15k" / "checkpoint_version.txt").read_text().strip() == "2"


def test_livejournal(tmp_path: Path, python: Path) -> None:
    """Its evaluation draws candidates at random: a trained model ranks its edges above them."""
    (tmp_path / "data").mkdir()
    blocks = [(lhs, rhs) for lhs in range(60) for rhs in range(60) if lhs % 6 == rhs % 6]
    text = "# a comment\n" * 4 + "".join(f"{lhs}\t{rhs}\n" for lhs, rhs in blocks)
    (tmp_path / "data" / "soc-LiveJournal1.txt.gz").write_bytes(gzip.compress(text.encode()))
    params = ("num_epochs=20", "dimension=16", "workers=1", "lr=0.1", "batch_size=50")
    rank, *_ = run(python, with_our_imports(pbg.examples(python) / "livejournal.py"), tmp_path, "-p", *params)
    assert rank < 30  # of 100
    assert (tmp_path / "model" / "livejournal" / "checkpoint_version.txt").read_text().strip() == "20"


def test_the_loader_and_p_mean_the_same(tmp_path: Path, python: Path) -> None:
    """Every key and default of release 1.0.0, and each text of -p: the same value, or refused by both."""
    path = tmp_path / "config.py"
    path.write_text(f"def get_torchbiggraph_config():\n    return {CONFIG!r}\n")
    (tmp_path / "load.py").write_text(LOADING)
    lists = [[], *([text] for text in TEXTS), ["disable_lhs_negs=y", "disable_rhs_negs=y"]]
    (tmp_path / "lists.json").write_text(json.dumps(lists))
    theirs = json.loads(pbg.told(python, tmp_path, "load.py").splitlines()[-1])
    keys = json.loads((DATA / "pbg_keys.json").read_text())["config"]
    assert list(theirs[0]) == [key for key, fact in keys.items() if fact["since"] == "1.0.0"]
    loader = pbg_api.ConfigFileLoader()
    for overrides, expected in zip(lists, theirs, strict=True):
        try:
            found = loader.load_config(str(path), overrides).to_dict()
        except ConfigError:
            found = None
        assert (found and pbg.known_to(python, found)) == expected, overrides
    assert 8 < theirs.count(None) < len(theirs) / 2
