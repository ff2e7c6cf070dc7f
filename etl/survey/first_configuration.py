"""Raw tables -> the text of a configuration that runs."""

import shlex
from collections.abc import Mapping, Sequence

from etl.survey.graph import Graph
from etl.survey.look import look_at
from etl.survey.outlook import outlook
from etl.survey.roles import Asked, guess
from etl.survey.text import configuration, left_out
from graphmill import storage
from graphmill.config import Config, from_mapping
from graphmill.config.defaults import applied
from graphmill.config.yaml_text import parsed
from graphmill.run.settled import with_sizes
from graphmill.vocab import TRAIN_SPLIT


def first_configuration(
    tables: Sequence[str], output: str | None, asked: Mapping[str, str | None]
) -> tuple[str, Graph]:
    """Return the text, and what was found in the tables; `asked` names the columns that users have named."""
    graph = guess(look_at(tables), Asked(**asked))
    name = storage.name(tables[0].rstrip("/")).partition(".")[0]
    options = [word for key, value in asked.items() if value for word in (f"--{key}", value)]
    command_line = shlex.join(["graphmill", "init", *tables, *options])
    text = configuration(graph, output or f"output/{name}", command_line)
    return text + left_out(*_settled(text)), graph


def _settled(text: str) -> tuple[Config, int]:
    """Return the settings that a run of the configuration would take, and about how many edges it has."""
    filled, chosen = applied(parsed(text, "the configuration"))
    settings = from_mapping(filled)
    size = outlook(settings).size
    assert size is not None
    num_entities = {name: (count,) for name, count in size.num_entities.items()}
    num_edges = size.num_edges[TRAIN_SPLIT]
    return with_sizes(settings.with_chosen(chosen), num_entities, num_edges), num_edges
