"""The command `convert`: output, refusals, and checkpoints of PBG through every format."""

from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from graphmill.checkpoints import FORMATS, open_checkpoint
from graphmill.cli import exit_codes
from graphmill.cli.main import command
from graphmill.errors import FormatError
from tests import DATA
from tests.graphmill.checkpoints.samples import FULL, WRITERS, check_equal, sample


def _convert(*arguments: str) -> list[str]:
    done = CliRunner().invoke(command, ["convert", *arguments], catch_exceptions=False, standalone_mode=False)
    return done.output.splitlines()


def test_convert_prints_the_source_and_the_lost_content(tmp_path: Path) -> None:
    WRITERS["pbg"](sample(), str(tmp_path / "source"))
    said = _convert(str(tmp_path / "source"), str(tmp_path / "target"), "--format", "graphstorm")
    rows = "item: 19 rows of 4 in 2 partition(s); user: 9 rows of 4 in 1 partition(s)"
    assert said[0] == f"source  pbg        version 7, {rows}"
    assert said[1].startswith("target  graphstorm item: 19 rows of 4 in 1 partition(s)")
    assert "not kept: optimizer state of the embeddings" in said
    assert any(line.startswith("not kept: 6 parameters of relations: rhs_operators.0") for line in said)
    assert said[-1].startswith("0.0 MB of embeddings in ")


def test_convert_refuses_bad_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is 2, and one line says what was expected and found."""
    WRITERS["pbg"](sample(), str(tmp_path / "source"))
    (tmp_path / "home/.ssh").mkdir(parents=True)
    for arguments, message in (
        (["source", "source", "--format", "recis"], "expected a folder that is empty or does not exist"),
        (["source", "home", "--format", "recis"], "expected a folder that is empty or does not exist"),
        (["nowhere", "target", "--format", "recis"], "expected the folder of a checkpoint, found none"),
        (["source", "target", "--format", "hdf5"], "is not one of"),
        (["source", "target", "--format", "pbg", "--version", "3"], "version 3 has no embeddings"),
    ):
        places = [str(tmp_path / each) for each in arguments[:2]]
        code = exit_codes.exit_code(
            lambda given=[*places, *arguments[2:]]: command.main(["convert", *given], standalone_mode=False)
        )
        assert code == 2
        assert message in capsys.readouterr().err
    assert {each.name for each in tmp_path.iterdir()} == {"source", "home"}
    assert (tmp_path / "home/.ssh").is_dir()


@pytest.mark.slow
@pytest.mark.parametrize("golden", ["pbg_v1_static", "pbg_v1_dyn"])
def test_a_round_trip_returns_the_files_of_pbg(tmp_path: Path, golden: str) -> None:
    """PBG's own checkpoint, through each format and back: the same embeddings file, byte for byte."""
    source = DATA / golden / "checkpoint"
    expected = open_checkpoint(str(source))
    for between in FORMATS:
        there, back = str(tmp_path / between), tmp_path / f"{between}-back"
        shards = ["--shards", "3"] if between == "recis" else []
        _convert(str(source), there, "--format", between, *shards)
        entities = str(DATA / golden / "entities")
        _convert(there, str(back), "--format", "pbg", "--entity-path", entities)
        if between in FULL:
            for path in source.glob("embeddings_*.h5"):
                assert (back / path.name).read_bytes() == path.read_bytes()
            found, wanted = open_checkpoint(str(back)).read_model(), expected.read_model()
            assert found is not None
            assert wanted is not None
            check_equal(found.parameters, wanted.parameters)
            check_equal(found.optimizer_state, wanted.optimizer_state)
            assert (back / "config.json").read_text() == (source / "config.json").read_text()


def test_convert_orders_the_rows_of_graphstorm_by_id(tmp_path: Path) -> None:
    """GraphStorm saves ids in any order; in PBG, row k is id k."""
    source = DATA / "graphstorm" / "emb"
    _convert(str(source), str(tmp_path / "target"), "--format", "pbg")
    found = open_checkpoint(str(tmp_path / "target"))
    for entity_type, (count,) in found.counts.items():
        parts = [
            torch.cat([torch.load(path) for path in sorted((source / entity_type).glob(f"{stem}-*.pt"))])
            for stem in ("embed_nids", "embed")
        ]
        assert sorted(parts[0].tolist()) == list(range(count))
        np.testing.assert_array_equal(found.read_embeddings(entity_type, 0)[parts[0]], parts[1])


def test_integers_are_no_checkpoint(tmp_path: Path) -> None:
    """GraphStorm saves embeddings of integers too, which float32 cannot hold."""
    (tmp_path / "user").mkdir()
    torch.save(torch.ones(3, 2, dtype=torch.int64), tmp_path / "user/embed-00000.pt")
    (tmp_path / "emb_info.json").write_text('{"emb_name": "user"}')
    with pytest.raises(FormatError, match=r"embed-00000\.pt: expected floats, found int64"):
        open_checkpoint(str(tmp_path))
