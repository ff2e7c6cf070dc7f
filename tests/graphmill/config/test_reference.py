"""The reference of the keys: a schema that agrees with the checks, and a page that is up to date; splits."""

import re
import zipfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from graphmill import config
from graphmill.cli.main import command
from graphmill.config import defaults, reference, yaml_text
from graphmill.config.splits import folder_of
from graphmill.errors import ConfigError
from tests import REPOSITORY
from tests.graphmill.smallest import GRAPH

EXAMPLES = sorted((REPOSITORY / "conf").glob("*.yaml"))


def parsed(conf: Path) -> Any:
    return yaml_text.parsed(conf.read_text(), str(conf))


@pytest.fixture(scope="module")
def schema() -> jsonschema.Draft202012Validator:
    """The schema, itself a right one."""
    content = reference.json_schema()
    jsonschema.Draft202012Validator.check_schema(content)
    return jsonschema.Draft202012Validator(content)


@pytest.mark.parametrize("conf", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_fit_the_schema_and_name_it(schema: jsonschema.Draft202012Validator, conf: Path) -> None:
    schema.validate(parsed(conf))
    config.load(str(conf))
    first = conf.read_text().splitlines()[0]
    assert first == "# yaml-language-server: $schema=graphmill.schema.json"


@pytest.mark.parametrize(
    "change",
    [
        *({"dimention": 3}, {"dimension": "8"}, {"train": {"optimizer": "adam"}}),
        *({"entities": {"entity": {"num_partitions": num}}} for num in (0, "many")),
        {"etl": {"tables": [{"path": 3, "lhs": 0, "rhs": 1, "relation": "r"}]}},
        {"cluster": {"hdfs_driver": "http"}},
    ],
    ids=str,
)
def test_the_schema_refuses_what_the_checks_refuse(schema, change):
    changed = parsed(REPOSITORY / "conf/triples.yaml") | change
    with pytest.raises(ConfigError):
        config.from_mapping(changed)
    with pytest.raises(jsonschema.ValidationError):
        schema.validate(changed)


@pytest.mark.parametrize(
    ("kind", "file"),
    [("json", "conf/graphmill.schema.json"), ("markdown", "docs/reference/configuration.md")],
)
def test_the_files_are_what_the_command_prints(kind: str, file: str) -> None:
    result = CliRunner().invoke(command, ["schema", "--format", kind])
    assert (REPOSITORY / file).read_text() == result.output, "make reference"
    assert result.exit_code == 0


def test_every_key_is_on_the_page_with_its_default() -> None:
    page = reference.markdown()
    assert "| `lr` | number ≥ 0 | by the recipe (`0.01`) | tunable | Learning rate. |" in page
    of_recipe = [key.removeprefix("train.") for key in defaults.RECOMMENDATIONS]
    assert [key for key in of_recipe if not re.search(rf"\n\| `{key}` \| [^|]* \| by the ", page)] == []
    assert "| `num_uniform_negs` | integer ≥ 0 | `1000` (`50`) |" in page
    assert "| `path` | string or list of string | required | fixed | File, folder" in page
    assert "## `etl.entities[]`" in page
    assert "## `entities.NAME`" in page
    schema = reference.json_schema()
    for properties in (schema["properties"], *(each["properties"] for each in schema["$defs"].values())):
        for key, described in properties.items():
            assert f"| `{key}` | " in page
            assert described["description"].endswith("."), key


@pytest.mark.slow
def test_the_wheel_has_the_examples(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for path in (*EXAMPLES, REPOSITORY / "conf/graphmill.schema.json"):
            assert archive.read(f"graphmill-examples/{path.name}") == path.read_bytes()


def test_examples_are_found_outside_the_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = config.load("graphmill:triples.yaml", ["output=here"])
    assert settings.output == str(tmp_path / "here")
    for name in ("triple.yaml", "../conf/triples.yaml"):
        with pytest.raises(ConfigError, match=r"there is no such example; .*triples"):
            config.load(f"graphmill:{name}")


FB15K = [f"/d/FB15k/freebase_mtr100_mte100-{split}_partitioned" for split in ("train", "valid", "test")]


@pytest.mark.parametrize(
    ("split", "edge_paths", "folder"),
    [
        ("train", FB15K, FB15K[0]),
        ("valid", FB15K, FB15K[1]),
        ("test", FB15K, FB15K[2]),
        ("freebase_mtr100_mte100-test_partitioned", FB15K, FB15K[2]),
        ("train", FB15K[::-1], FB15K[0]),
        ("train", ["/d/monday", "/d/tuesday"], "/d/monday"),
        ("tuesday", ["/d/monday", "/d/tuesday"], "/d/tuesday"),
        ("test", ["/d/train/edges", "/d/test/edges"], "/d/test/edges"),
        ("test-edges", ["/d/train/edges", "/d/test/edges"], "/d/test/edges"),
        ("test", ["/d/test_of_spring"], "/root/test"),  # the only path is trained on
        ("test", ["/d/a_test", "/d/b_test"], "/root/test"),
        ("test", ["/d/latest", "/d/train"], "/root/test"),
        ("test", ["hdfs://ns/d/train/", "hdfs://ns/d/test/"], "hdfs://ns/d/test/"),
    ],
)
def test_the_folder_of_a_split(split: str, edge_paths: list[str], folder: str) -> None:
    assert folder_of(split, edge_paths, "/root") == folder


@pytest.mark.parametrize(
    ("edge_paths", "overrides", "split", "folder"),
    [
        (["d/edges"], [], "edges", "d/edges"),
        (["d/monday", "d/tuesday"], [], "tuesday", "d/tuesday"),
        (["d/x_train", "d/x_test"], [], "test", "d/x_test"),
        (["d/x_train", "d/x_test"], ["edge_paths=[d/x_test]"], "x_test", "d/x_test"),
        (["d/edges"], ["etl.tables=[{path: x, lhs: 0, rhs: 1, relation: r, split: test}]"], "test", "d/test"),
        (["beside/train"], [], "test", "beside/test"),
    ],
)
def test_a_configuration_of_pbg_evaluates_held_out_edges_or_its_last_edge_path(
    tmp_path: Path, monkeypatch: Any, edge_paths: list[str], overrides: list[str], split: str, folder: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside" / "test").mkdir(parents=True)
    raw = GRAPH | {"entity_path": "d", "edge_paths": edge_paths, "checkpoint_path": "model"}
    (tmp_path / "config.py").write_text(f"def get_torchbiggraph_config():\n    return {raw!r}\n")
    found = config.load("config.py", overrides)
    chosen = found.evaluate.split
    assert (chosen, found.split_path(chosen)) == (split, str(tmp_path / folder))
