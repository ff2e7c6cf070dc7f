"""The configuration: accepted values, refused values, and the messages."""

import json
import pickle
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from graphmill import config
from graphmill.config import PbgConfig, Section
from graphmill.config.sections.etl import EtlConfig
from graphmill.config.sections.evaluate import EvaluateConfig
from graphmill.config.sections.remap import DriftConfig, RemapConfig
from graphmill.config.sections.train import TrainConfig
from graphmill.errors import ConfigError
from graphmill.vocab import Side
from tests import DATA

ONE = {"num_partitions": 1}
BUYS = {"name": "buys", "lhs": "user", "rhs": "item"}
FEATURIZED = {"entities": {"user": ONE, "item": ONE | {"featurized": True}}}
DYNAMIC = {"dynamic_relations": True}


def raw(**changes: Any) -> dict[str, Any]:
    entities = {"user": {"num_partitions": 4}, "item": ONE}
    return {"output": "/out", "entities": entities, "relations": [BUYS], "dimension": 8, **changes}


def test_output_is_the_root_of_every_path_that_is_not_set() -> None:
    settings = config.from_mapping(raw(output="hdfs://ns/out", checkpoint_path="/fast/ckpt"))
    assert settings.entity_path == "hdfs://ns/out/entities"
    assert settings.edge_paths == ("hdfs://ns/out/edges/train",)
    assert settings.split_path("test") == "hdfs://ns/out/edges/test"
    assert settings.embedding_path == "hdfs://ns/out/embeddings"
    assert settings.record_uri("elsewhere") == "hdfs://ns/out/run.json"
    assert settings.checkpoint_path == "/fast/ckpt"
    paths = {"entity_path": "d/entities", "edge_paths": ["d/edges/train"], "checkpoint_path": "d/model"}
    settings = config.from_mapping({k: v for k, v in raw(**paths).items() if k != "output"})
    assert settings.split_path("test") == "d/edges/test"
    assert settings.record_uri(settings.checkpoint_path) == "d/model/run.json"
    assert settings.embedding_path == "d/model/embeddings"  # another model beside it has its own
    with pytest.raises(ConfigError, match="set it \\(--set output=URI\\)"):
        config.from_mapping({k: v for k, v in raw().items() if k != "output"})


def test_pbg_python_config_gives_what_pbg_wrote() -> None:
    for golden in ("pbg_v1_dyn", "pbg_v1_static"):
        folder = DATA / golden
        written_by_pbg = json.loads((folder / "checkpoint" / "config.json").read_text())
        loaded = config.load(str(folder / "config.py"))
        assert loaded.entity_path == str(Path.cwd() / "entities")
        paths = {key: written_by_pbg[key] for key in ("entity_path", "edge_paths", "checkpoint_path")}
        pbg = config.from_mapping(loaded.pbg() | paths).pbg()
        assert pbg == written_by_pbg
        assert list(pbg) == list(written_by_pbg)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dimension": 0}, "dimension: .* found 0"),
        ({"lr": float("nan")}, "lr: .*finite"),
        ({"entities": {"user": {}}}, "entities.user.num_partitions: missing"),
        ({"entities": {"a.b": ONE}}, r"entities.a.b.*: expected a name: no dot, .*; found 'a.b'"),
        ({"entities": {}}, "entities: expected at least one"),
        ({"entities": {"user": "auto", "item": ONE}}, r"entities\.user: .* found 'auto'"),
        ({"relations": []}, "relations: expected at least one, found none"),
        ({"relations": [BUYS | {"lhs": "usr"}]}, r"relations\[0\].lhs: 'usr' is not among"),
        ({"relations": [BUYS | {"operator": "x"}]}, r"relations\[0\].operator"),
        *(  # a weight has the limit of those of edges
            ({"relations": [BUYS | {"weight": weight}]}, r"relations\[0\]\.weight: input should be")
            for weight in (0, 2e15)
        ),
        ({"relations": [BUYS] * 2}, "two relations are named 'buys'"),
        (FEATURIZED | {"relations": [BUYS | {"all_negs": True}]}, r"\[0\].all_negs: a featurized type"),
        (DYNAMIC | {"global_emb": True}, "global_emb: cannot be used with dynamic_relations"),
        ({"entities": {"user": ONE | {"dimension": 4}, "item": ONE}}, "dimension 4"),
        (DYNAMIC | {"relations": [BUYS, BUYS | {"name": "b"}]}, "exactly one entry, found 2"),
        ({"output": ""}, "output: expected a folder's URI, found an empty string"),
        (  # nor a list too short
            {"etl": {"tables": [{"path": "x", "lhs": 0, "rhs": 1, "relaton": "r"}]}},
            r"^etl\.tables\[0\]\.relaton: unknown key; did you mean 'relation'\?$",
        ),
        ({"etl": {"tables": []}}, "at least 1 item"),
        ({"train": 3}, r"train: .*valid dictionary.*found 3"),
        ({"etl": {"chunk_rows": 4}}, r"etl\.tables: missing, it has no default"),
    ],
)
def test_a_wrong_value_is_refused_with_its_path(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config.from_mapping(raw(**changes))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c.py", "def get_torchbiggraph_config(:", "SyntaxError"),
        ("c.py", "import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("c.py", "def get_torchbiggraph_config(): pass", "TypeError"),
        ("c.py", "x = 1", "expected a function"),
        *(("c.yaml", text, "") for text in ("a: [1", "- just\n- a list\n", "3")),
    ],
)
def test_a_file_that_is_no_configuration(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=rf"{re.escape(name)}.*{message}"):
        config.load(str(tmp_path / name))


def written(folder: Path, **changes: Any) -> str:
    """Write a configuration as `c.yaml`."""
    (folder / "c.yaml").write_text(json.dumps(raw(**changes), indent=1))
    return str(folder / "c.yaml")


def test_overrides_reach_everywhere(tmp_path: Path) -> None:
    conf = written(tmp_path)
    changes = ["relations[0].operator=translation", "lr=1e-3", "train.patience=2", "init_path=null"]
    settings = config.load(conf, changes)
    assert (settings.relations[0].operator, settings.lr) == ("translation", 1e-3)
    assert settings.train.patience == 2
    assert config.read_raw(conf, ["etl.tables.more=[1, 2]"])["etl"] == {"tables": {"more": [1, 2]}}


def test_an_error_names_the_line_in_the_file(tmp_path: Path) -> None:
    conf = tmp_path / "c.yaml"
    conf.write_text(
        "output: out\n"
        "dimension: &d 8\n"
        "entities:\n"
        "  user: {num_partitions: 1, dimension: *d}\n"
        "  item:\n"
        "    num_partition: 1\n"
        "relations:\n"
        "  - {name: r, lhs: user, rhs: item}\n"
        "  - name: s\n"
        "    lhss: user\n"
        "    rhs: item\n"
    )
    with pytest.raises(ConfigError) as caught:
        config.load(str(conf), ["relations[0].operater=other", "relations[0].operater=none"])
    assert str(caught.value).splitlines() == [
        f"{conf}:6: entities.item.num_partition: unknown key; did you mean 'num_partitions'?",
        "--set relations[0].operater=none: relations[0].operater: unknown key; did you mean 'operator'?",
        f"{conf}:9: relations[1].lhs: missing, it has no default",
        f"{conf}:10: relations[1].lhss: unknown key; did you mean 'lhs'?",
    ]

    written(tmp_path, disable_lhs_negs=True, disable_rhs_negs=True)
    line = next(at for at, text in enumerate(conf.read_text().splitlines(), 1) if "disable_rhs" in text)
    message = rf"^{re.escape(str(conf))}:{line}: disable_rhs_negs: cannot be used"
    with pytest.raises(ConfigError, match=message):
        config.load(str(conf))


@pytest.mark.parametrize(
    "override",
    ["lr", "=3", "a..b=1", "relations[7].name=x", "lr.deep=3", "lr=[1", "entities.usr.num_partitions=2"],
)
def test_an_override_that_fits_nowhere_is_refused(tmp_path: Path, override: str) -> None:
    with pytest.raises(ConfigError, match="--set"):
        config.load(written(tmp_path, lr=0.5), [override])


def test_a_section_that_is_absent_has_its_defaults() -> None:
    settings = config.from_mapping(raw(etl={}))
    assert settings.train == TrainConfig()
    with pytest.raises(ConfigError, match=r"etl\.tables: missing"):
        settings.section(EtlConfig)


def test_a_section_drift_without_keys_is_one() -> None:
    """A pipeline compares with the run before then; in run.json too, which says null where there is none."""
    for changes, expected in ({"drift": {}}, DriftConfig()), ({"drift": None}, None), ({}, None):
        settings = config.from_mapping(raw(**changes))
        assert settings.drift == config.from_mapping(settings.recorded()).drift == expected


def test_sections_reach_workers_and_run_json_as_they_were_given() -> None:
    given = {"train": {"patience": 2, "optimizer": "adagrad"}, "cluster": {"tls": "off"}, "etl": {}}
    settings = config.from_mapping(raw(**given))
    again = pickle.loads(pickle.dumps(settings))
    assert again == settings
    assert "num_workers" not in again.train.model_fields_set
    recorded = settings.model_dump(mode="json")
    assert {name: recorded[name] for name in given} == given
    assert config.from_mapping(recorded) == settings


def sections_of(model: type[BaseModel]) -> set[type[Section]]:
    """All configuration classes inside `model`, and `model` itself."""
    found, pending = set(), [model]
    while pending:
        current = pending.pop()
        if isinstance(current, type) and issubclass(current, Section) and current is not Section:
            found.add(current)
            pending += [field.annotation for field in current.model_fields.values()]
        pending += get_args(current)
    return found


def test_every_key_says_its_effect_on_the_result() -> None:
    sections = (EtlConfig, TrainConfig, EvaluateConfig, RemapConfig, DriftConfig)
    stages = set().union(*map(sections_of, sections))
    for model in sections_of(PbgConfig) | stages:
        assert model.effects().keys() == model.model_fields.keys(), model
    unsaid = config.Config.model_fields.keys() - config.Config.effects().keys()
    assert unsaid == {"etl", "train", "evaluate", "remap", "drift"}  # the keys inside say it


@given(st.integers(1, 9), st.integers(1, 9))
def test_the_grid_is_as_wide_as_the_most_partitioned_type(user: int, item: int) -> None:
    """Each side has a width of its own, as in PBG; types on one side have the same number, or 1."""
    entities = {"user": {"num_partitions": user}, "item": {"num_partitions": item}}
    settings = config.from_mapping(raw(entities=entities))
    assert [settings.num_side_partitions(side) for side in Side] == [user, item]
    both = [{"name": name, "lhs": name, "rhs": "item"} for name in entities]
    if 1 not in (user, item) and user != item:
        with pytest.raises(ConfigError, match="broadcast"):
            config.from_mapping(raw(entities=entities, relations=both))
        return
    settings = config.from_mapping(raw(entities=entities, relations=both))
    assert [settings.num_side_partitions(side) for side in Side] == [max(user, item), item]


def test_paths_of_a_run_follow_an_output_that_is_named(tmp_path: Path) -> None:
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    recorded = config.from_mapping(raw(output=old, edge_paths=["/shared/edges"])).recorded()
    (tmp_path / "old").mkdir()
    (tmp_path / "old/run.json").write_text(json.dumps({"config": recorded, "stages": {}}))
    chosen = f"entity_path={old}/entities"
    found = config.load(f"{old}/run.json", [chosen, f"output={new}"])
    assert (found.output, found.checkpoint_path) == (new, f"{new}/checkpoint")
    assert found.embedding_path == f"{new}/embeddings"
    assert found.entity_path == f"{old}/entities"
    assert found.edge_paths == ("/shared/edges",)


def test_paths_in_a_run_that_has_moved(tmp_path: Path) -> None:
    before, now = "/was/here", str(tmp_path)
    settings = raw(
        output=before,
        entity_path=f"{before}/entities",
        edge_root="/elsewhere/edges",
        edge_paths=[f"{before}/edges/train", "/elsewhere/edges/train"],
        checkpoint_path=f"{before}/../theirs",
        evaluate={"filter_paths": [f"{before}/edges/valid", "/elsewhere/edges/valid"]},
        train={"save_embed_path": f"{before}/for_graphstorm", "save_model_path": "/elsewhere/model"},
    )
    (tmp_path / "run.json").write_text(json.dumps({"config": settings, "stages": {}}))
    found = config.load(str(tmp_path / "run.json"))
    assert (found.output, found.entity_path, found.edge_root) == (now, f"{now}/entities", "/elsewhere/edges")
    assert found.edge_paths == (f"{now}/edges/train", "/elsewhere/edges/train")
    assert found.checkpoint_path == f"{before}/../theirs"
    assert found.evaluate.filter_paths == (f"{now}/edges/valid", "/elsewhere/edges/valid")
    assert found.train.save_embed_path == f"{now}/for_graphstorm"  # not what the first run has written
    assert found.train.save_model_path == "/elsewhere/model"
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"run\.json: expected a mapping"):
        config.load(str(tmp_path / "run.json"))
