"""The stages of a run."""

from graphmill.cli.stages import STAGES
from graphmill.config import Config
from graphmill.config.sections import SECTIONS


def test_every_stage_has_its_section() -> None:
    names = [stage.name for stage in STAGES]
    assert names == list(SECTIONS)[: len(STAGES)]
    assert SECTIONS.keys() < Config.model_fields.keys()
