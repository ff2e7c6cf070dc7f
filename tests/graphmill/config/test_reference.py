"""The reference of the keys: a schema that agrees with the checks, and a page that is up to date."""

import zipfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from graphmill import config
from graphmill.cli.main import command
from graphmill.config import reference, yaml_text
from graphmill.errors import ConfigError
from tests import REPOSITORY

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
    first = conf.read_text().splitlines()[0]
    assert first == "# yaml-language-server: $schema=graphmill.schema.json"


@pytest.mark.parametrize(
    "change",
    [
        {"dimention": 3},
        {"dimension": "8"},
        {"entities": {"entity": {"num_partitions": 0}}},
        {"entities": {"entity": {"num_partitions": "many"}}},
        {"etl": {"tables": [{"path": 3, "lhs": 0, "rhs": 1, "relation": "r"}]}},
        {"train": {"optimizer": "adam"}},
        {"cluster": {"hdfs_driver": "http"}},
    ],
    ids=str,
)
def test_the_schema_refuses_what_the_checks_refuse(
    schema: jsonschema.Draft202012Validator, change: dict[str, Any]
) -> None:
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
    assert "| `lr` | number ≥ 0 | by the graph's density (`0.01`) | tunable | Learning rate. |" in page
    assert "| `num_uniform_negs` | integer ≥ 0 | `1000` (`50`) |" in page
    assert "| `path` | string or list of string | required | fixed | File, folder" in page
    assert "## `etl.entities[]`" in page
    assert "## `entities.NAME`" in page
    schema = reference.json_schema()
    for properties in (schema["properties"], *(each["properties"] for each in schema["$defs"].values())):
        for key, described in properties.items():
            assert f"| `{key}` | " in page
            assert described.get("description"), key


@pytest.mark.slow
def test_the_wheel_has_the_examples(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for path in (*EXAMPLES, REPOSITORY / "conf/graphmill.schema.json"):
            assert archive.read(f"graphmill-examples/{path.name}") == path.read_bytes()


def test_examples_are_found_outside_the_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = config.load("graphmill:triples.yaml", ["output=here"])
    assert settings.output == str(tmp_path / "here")
    with pytest.raises(
        ConfigError, match=r"graphmill:triple\.yaml: there is no such example; .*triples\.yaml"
    ):
        config.load("graphmill:triple.yaml")
    with pytest.raises(ConfigError, match="there is no such example"):
        config.load("graphmill:../conf/triples.yaml")
