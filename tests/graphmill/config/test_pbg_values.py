"""PBG's keys and values: every key in both loaders, enums, `-p`, and configurations of early 2019."""

import json
import re
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from graphmill import config
from graphmill.cli.main import command
from graphmill.config import Config, PbgConfig
from graphmill.errors import ConfigError
from tests import DATA, REPOSITORY
from train.job import REPLACED
from train.pbg_api import ConfigFileLoader

KEYS = json.loads((DATA / "pbg_keys.json").read_text())
SMALLEST = {
    "entities": {"user": {"num_partitions": 1}, "item": {"num_partitions": 1}},
    "relations": [{"name": "buys", "lhs": "user", "rhs": "item"}],
    "dimension": 4,
    "entity_path": "/data/entities",
    "edge_paths": ["/data/edges"],
    "checkpoint_path": "/data/model",
}
INSIDE = {"entity": ("entities", "user"), "relation": ("relations", 0), "config": ()}
EACH_KEY = [(section, key) for section, keys in KEYS.items() for key in keys]
PAGE = REPOSITORY / "docs" / "how_to" / "coming_from_pbg.md"


class BucketOrder(Enum):
    """A configuration as PBG has it."""

    INSIDE_OUT = "inside_out"
    OUTSIDE_IN = "outside_in"


def with_key(section: str, key: str, value: Any) -> dict[str, Any]:
    """The smallest configuration, with another value of one key."""
    raw: Any = json.loads(json.dumps(SMALLEST))
    inner = raw
    for step in INSIDE[section]:
        inner = inner[step]
    inner[key] = value
    return dict(raw)


def read(settings: Config, section: str, key: str) -> Any:
    content = settings.model_dump(mode="json")
    for step in INSIDE[section]:
        content = content[step]
    return content[key]


def same(found: Any, given: Any) -> bool:
    """Whether all that is given is found: mappings inside may have more keys, with defaults."""
    if isinstance(given, dict):
        return all(same(found[key], value) for key, value in given.items())
    if isinstance(given, list):
        return len(found) == len(given) and all(map(same, found, given))
    return bool(found == given)


def in_python(tmp_path: Path, raw: Any, function: str = "get_torchbiggraph_config", before: str = "") -> str:
    """Write a configuration in Python; `raw` may be the text of an expression."""
    path = tmp_path / "config.py"
    path.write_text(f"{before}\ndef {function}():\n    return {raw}\n")
    return str(path)


def test_the_schema_has_exactly_the_keys_of_pbg() -> None:
    assert list(KEYS["config"]) == list(PbgConfig.model_fields)
    assert list(KEYS["entity"]) == list(config.EntityConfig.model_fields)
    assert list(KEYS["relation"]) == list(config.RelationConfig.model_fields)


@pytest.mark.parametrize(("section", "key"), EACH_KEY)
def test_each_key_of_pbg_passes_both_loaders_and_p(tmp_path: Path, section: str, key: str) -> None:
    fact = KEYS[section][key]
    raw = with_key(section, key, fact["example"])
    text = tmp_path / "config.yaml"
    text.write_text(json.dumps(raw))
    for conf in (in_python(tmp_path, raw), str(text)):
        assert same(read(config.load(conf), section, key), fact["example"])
    conf = in_python(tmp_path, SMALLEST)
    if "default" in fact:
        assert read(config.load(conf), section, key) == fact["default"]
    if key not in ("entities", "relations"):
        value = fact["example"]
        path = ".".join(map(str, (*INSIDE[section], key)))
        given = config.as_override(f"{path}={','.join(value) if isinstance(value, list) else value}")
        assert read(config.load(conf, [given]), section, key) == value


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("edge_paths=one", 'edge_paths=["one"]'),
        ("edge_paths=one,two words", 'edge_paths=["one", "two words"]'),
        ("entity_path=hdfs://ns/day=2024-01-01", 'entity_path="hdfs://ns/day=2024-01-01"'),
        ("entity_path=007", 'entity_path="007"'),
        ("bucket_order=INSIDE_OUT", 'bucket_order="inside_out"'),
        ("bucket_order=Affinity", 'bucket_order="affinity"'),
        ("regularizer=N3", 'regularizer="N3"'),
        ("comparator=DOT", 'comparator="dot"'),
        ("relations.0.operator=TRANSLATION", 'relations.0.operator="translation"'),
        ("global_emb=Off", "global_emb=false"),
        ("bias=1", "bias=true"),
        ("lr=1", "lr=1.0"),
        ("maxNorm=1e-3", "max_norm=0.001"),
        ("entities.userId.numPartitions=4", "entities.userId.num_partitions=4"),
        ("metric=dot", 'comparator="dot"'),
        ("partitionOrder=CHAINED_SYMMETRIC_PAIRS", 'bucket_order="affinity"'),
    ],
)
def test_p_reads_text_by_the_type_of_its_key(given: str, expected: str) -> None:
    assert config.as_override(given) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("lr", "-p lr: expected key=value"),
        ("dimension=ten", r"-p dimension=ten: expected a number \(int\), found 'ten'"),
        ("dimension=1.5", "expected a number"),
        ("global_emb=maybe", "expected one of 1, y, yes, true, on, 0, n, no, false, off, found 'maybe'"),
        ("dimention=3", "no such key; did you mean 'dimension'"),
        ("lr.deep=3", "no such key"),
        ("train.patience=3", "no such key; use --set for keys of GraphMill"),
    ],
)
def test_p_that_fits_nowhere_is_refused(given: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config.as_override(given)


@pytest.mark.parametrize("name", ["check", "etl", "train", "evaluate", "remap", "pipeline"])
def test_commands_take_p_before_set(tmp_path: Path, name: str) -> None:
    """The dry run needs no data; a wrong value of -p, and not of --set, is what each command refuses."""
    arguments = [name, "--conf", in_python(tmp_path, SMALLEST), *([] if name == "check" else ["--dry-run"])]
    for more, wrong in (([], "COSINE"), (["--param", "lr=0.5", "--set", "comparator=dott"], "dott")):
        found = CliRunner().invoke(command, [*arguments, "-p", "comparator=COSINE", *more])
        assert isinstance(found.exception, ConfigError)
        assert re.search(f"comparator: .*'{wrong}'", str(found.exception))


def test_enums_and_words_of_python(tmp_path: Path) -> None:
    before = "import enum\nclass BucketOrder(enum.Enum):\n    OUTSIDE_IN = 'outside_in'\n"
    raw = {**SMALLEST, "comparator": "L2", "bias": 1, "globalEmb": 0, "background_io": "yes"}
    text = f"{{**{raw}, 'bucket_order': BucketOrder.OUTSIDE_IN}}"
    settings = config.load(in_python(tmp_path, text, before=before))
    assert settings.bucket_order == "outside_in"
    assert (settings.comparator, settings.bias) == ("l2", True)
    assert (settings.global_emb, settings.background_io) == (False, True)
    for order in ("INSIDE_OUT", BucketOrder.INSIDE_OUT):
        assert config.from_python({**SMALLEST, "bucket_order": order})["bucket_order"] == "inside_out"


def test_yaml_stays_yaml(tmp_path: Path) -> None:
    text = tmp_path / "c.yaml"
    text.write_text(json.dumps({**SMALLEST, "bucket_order": "INSIDE_OUT"}))
    with pytest.raises(ConfigError, match=r"bucket_order: input should be .*found 'INSIDE_OUT'"):
        config.load(str(text))


JANUARY = {
    **{"model": "f2_model", "dimension": 4, "metric": "dot", "lossFn": "logit", "globalEmb": 0},
    "entities": {"user": {"numPartitions": 1, "featurized": 0}},
    "relations": [{"name": "r", "lhs": "user", "rhs": "user", "operator": "affine_rhs", "all_rhs_negs": 1}],
    **{"partitionOrder": "chained_symmetric_pairs", "distributedTreeInitOrder": 1, "background_io": 0},
    **{"entityPath": "/data/entities", "edgePaths": ["/data/edges"]},
    **{"outdir": "/data/model", "loadPath": "/data/init"},
    **{"numEpochs": 3, "evalNumBatchNegs": 5, "numDynamicRels": 0},
}


@pytest.mark.parametrize("function", ["getConf", "get_torchbiggraph_conf", "get_torchbiggraph_config"])
def test_a_configuration_of_january(tmp_path: Path, function: str) -> None:
    settings = config.load(in_python(tmp_path, JANUARY, function))
    assert (settings.comparator, settings.loss_fn, settings.bucket_order) == ("dot", "logistic", "affinity")
    assert (settings.relations[0].operator, settings.relations[0].all_negs) == ("affine", True)
    assert (settings.disable_lhs_negs, settings.disable_rhs_negs) == (True, False)
    assert (settings.checkpoint_path, settings.init_path) == ("/data/model", "/data/init")
    assert (settings.num_epochs, settings.eval_num_batch_negs, settings.global_emb) == (3, 5, False)
    assert not settings.dynamic_relations
    for changes in ({"numDynamicRels": 7}, {"dynamic_relations": True}):  # all_rhs_negs replaced both sides
        settings = config.load(in_python(tmp_path, JANUARY | changes, function))
        assert settings.dynamic_relations
        assert settings.relations[0].all_negs
        assert not settings.disable_lhs_negs
    with pytest.raises(ConfigError, match="colour: unknown key"):
        config.load(in_python(tmp_path, JANUARY | {"colour": 1}, function))
    several = [JANUARY["relations"][0] | {"name": name, "all_rhs_negs": name} for name in ("", "b")]
    with pytest.raises(ConfigError, match=r"relations\[1\]\.all_rhs_negs: expected in all relations or none"):
        config.load(in_python(tmp_path, JANUARY | {"relations": several}, function))


def test_edge_paths_of_the_examples_come_from_a_program_or_p(tmp_path: Path) -> None:
    conf = in_python(tmp_path, JANUARY | {"edgePaths": []}, "getConf")
    settings = config.load(conf, [config.as_override("edge_paths=/data/FB15k/train")])
    assert settings.edge_paths == ("/data/FB15k/train",)
    with pytest.raises(ConfigError, match=r"edge_paths: expected at least one, found none: .*-p edge_paths"):
        config.load(conf)
    raw = ConfigFileLoader().load_config(conf).to_dict()  # as PBG's example scripts, which fill them in
    assert (raw["edge_paths"], raw["dimension"]) == ([], settings.dimension)


def test_the_page_tells_what_becomes_of_each_key() -> None:
    lines = []
    for section, path in (("config", ""), ("entity", "entities.*."), ("relation", "relations.*.")):
        for key, fact in KEYS[section].items():
            instead = REPLACED.get(key) if section == "config" else None
            since = "" if fact["since"] == "1.0.0" else " (HEAD)"
            lines.append(f"| `{path}{key}`{since} | {f'ignored: {instead}' if instead else 'same'} |")
    page = PAGE.read_text().splitlines()
    start = page.index("| key of PBG | here |")
    assert [line for line in page[start + 2 :] if line.startswith("|")] == lines
    assert REPLACED.keys() <= KEYS["config"].keys()
    for key in REPLACED:
        assert re.match("Without effect", PbgConfig.model_fields[key].description or ""), key


@pytest.mark.parametrize("uri", ["no_such_config.py", "hdfs://nowhere:1/config.py"])
def test_a_python_configuration_that_is_not_there(uri: str) -> None:
    with pytest.raises(ConfigError, match=rf"{uri}: a Python configuration must be a local file, found none"):
        config.load(uri)
