"""The table of stages."""

from importlib import import_module

import click
import pytest

from graphmill.config import Config
from graphmill.config.sections import SECTIONS
from graphmill.config.stages import STAGES, named

JOB = ("check", "check_outputs", "fingerprint", "output_uris", "run", "written_uris")


@pytest.mark.parametrize("name", STAGES)
def test_every_name_of_the_table_exists(name: str) -> None:
    stage = STAGES[name]
    job = import_module(stage.job)
    assert all(callable(getattr(job, function)) for function in JOB)
    assert callable(named(stage.summary))
    assert not stage.command or isinstance(named(stage.command), click.Command)
    assert not stage.tables or callable(named(stage.tables))


def test_every_section_is_a_key() -> None:
    assert SECTIONS.keys() < Config.model_fields.keys()
