"""`graphmill check --date`: the plan of a configuration whose paths have dates; nothing is written."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from graphmill import storage
from graphmill.cli.main import command

DAY = ("--date", "2026-11-20")


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """A daily configuration; there is a table for the 20th of November, and the 19th is finished."""
    (tmp_path / "day=2026-11-20.csv").write_text("user,film\na,x\nb,y\n")
    before = f"{tmp_path}/out/{{previous_date}}"
    table = {"path": "day={date}.csv", "lhs": "user", "rhs": "film", "relation": "seen"}
    content = {
        **{"input": str(tmp_path), "output": f"{tmp_path}/out/{{date}}", "init_path": f"{before}/checkpoint"},
        "entities": {"user": {}, "film": {}},
        "relations": [{"name": "seen", "lhs": "user", "rhs": "film"}],
        "etl": {"tables": [table], "previous_entity_path": f"{before}/entities"},
        "evaluate": {"enabled": False},
    }
    (tmp_path / "daily.yaml").write_text(json.dumps(content))
    return tmp_path / "daily.yaml"


def check(*words: str | Path) -> Result:
    return CliRunner().invoke(command, ["check", *map(str, words)])


def test_workers_with_too_little_memory_have_no_plan(conf: Path) -> None:
    told = str(check(conf, *DAY, "--master", "local[1]", "--worker-memory", "500MiB").exception)
    assert told.startswith("cluster.worker_memory: expected at least 768MiB for train, found 500MiB")


def test_the_plan_says_what_yarn_is_asked_for(conf: Path) -> None:
    words = ("--master", "yarn", "--num-workers", "16", "--worker-memory", "8GiB", "--worker-cores", "2")
    before = sorted(conf.parent.rglob("*"))
    found = check(conf, *DAY, *words, "--queue", "batch")
    assert found.exit_code == 0, (found.output, found.exception)
    assert "table day=2026-11-20.csv" in found.output
    assert "16 of 9,011 MiB, cores: 2" in found.output
    assert re.search(r"for epochs: 8, edges: \d", found.output)  # of so few
    assert "batch" in found.output
    assert "YARN" not in check(conf, *DAY).output
    assert sorted(conf.parent.rglob("*")) == before


def test_a_date_continues_from_the_one_before(conf: Path) -> None:
    storage.write_marker(str(conf.parent / "out/2026-11-19"), {})
    assert "2026-11-19/entities" in str(check(conf, *DAY).exception)  # which the marker alone does not make


def test_a_finished_date_whose_predecessor_is_deleted_has_no_plan(conf: Path) -> None:
    output = conf.parent / "out/2026-11-20"
    storage.write_marker(str(output), {})
    schedule = {"date": "2026-11-20", "previous_date": "2026-11-19"}
    (output / "run.json").write_text(json.dumps({"config": {"schedule": schedule}, "stages": {}}))
    found = check(conf, *DAY)
    assert found.exit_code == 0, found.exception
    assert f"{output}: finished, and its previous date is deleted; nothing to do" in found.output


def test_a_configuration_for_a_date_asks_for_one_with_tables(conf: Path) -> None:
    assert "day=2026-11-21.csv: no file there" in str(check(conf, "--date", "2026-11-21").exception)
    assert "the configuration is for a date; give --date YYYY-MM-DD" in str(check(conf).exception)
    wrong = check(conf, "--date", "20.11.2026")
    assert wrong.exit_code == 2
    assert "--date" in wrong.output
