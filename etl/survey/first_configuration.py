"""Raw tables -> the text of a configuration that runs.

Writes the configuration of a guessed graph as YAML with comments.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow.compute as pc

from etl.survey.graph import GuessedEdges, GuessedGraph
from etl.survey.look import Look, look_at
from etl.survey.outlook import estimate
from etl.survey.roles import AskedColumns, guess
from etl.survey.sample import SAMPLE_ROWS
from graphmill import storage
from graphmill.config import Config, from_mapping
from graphmill.config.defaults import applied
from graphmill.config.yaml_text import as_yaml, parsed
from graphmill.run.auto_values import with_sizes
from graphmill.vocab import TRAIN_SPLIT

HOLDOUT = 0.05
_SHOWN = {
    "dimension": "length of each vector",
    "num_epochs": "times that each edge is trained on",
    "batch_size": "edges or queries of a step",
    "lr": "learning rate",
}


def configuration(graph: GuessedGraph, output: str, command: str) -> str:
    """YAML of a run over `graph` that writes to the folder `output`; `command` made the text."""
    return "\n".join([*_head(output, command), *_entities(graph), *_relations(graph), *_etl(graph), ""])


def left_out(settings: Config, num_edges: int) -> str:
    """Comments with the values that a run takes for keys that the configuration leaves out."""
    lines = [
        "",
        "# Keys that are left out get values that fit the size of the graph, as the log says. Some of them,",
        f"# for about {num_edges:,} edges to train on:",
        *(f"# {f'{key}: {getattr(settings, key)}':<18}  # {text}" for key, text in _SHOWN.items()),
    ]
    return "\n".join([*lines, ""])


def _head(output: str, command: str) -> list[str]:
    return [
        _remark(f"Made by `{command}`. All keys: `graphmill schema --format markdown`."),
        "# Check it: graphmill check --conf THIS_FILE. Run it: graphmill pipeline --conf THIS_FILE.",
        "",
        "# The folder of all results, local or hdfs://. Its folder `embeddings` has the vectors by raw id.",
        f"output: {_quoted(output)}",
    ]


def _entities(graph: GuessedGraph) -> Iterator[str]:
    yield from (
        "",
        "# Types of entities. Columns with the same values, or the same name, are of one type.",
        "entities:",
    )
    for name in graph.types:
        yield f"  {_quoted(name)}: {{}}"


def _relations(graph: GuessedGraph) -> Iterator[str]:
    entries = list(dict.fromkeys(entry for edge in graph.edges for entry in edge.entries()))
    ends = {(lhs, rhs) for _, lhs, rhs in entries}
    columns = any(edge.relation for edge in graph.edges)
    yield ""
    if columns and len(ends) == 1:
        yield "# The relations are numbered as the tables name them; one entry stands for all."
        yield "dynamic_relations: true"
        entries = [("all", *next(iter(ends)))]
    elif columns:
        yield f"# The relations in the first {SAMPLE_ROWS:,} rows of each table; add those that are missing."
    operator = "complex_diagonal" if columns or len(entries) > 1 or entries[0][1] == entries[0][2] else "none"
    yield "relations:"
    for name, lhs, rhs in entries:
        yield f"  - {{name: {_quoted(name)}, lhs: {_quoted(lhs)}, rhs: {_quoted(rhs)}, operator: {operator}}}"


def _etl(graph: GuessedGraph) -> Iterator[str]:
    yield from ("", "etl:", "  tables:")
    for edge in graph.edges:
        yield from _comment(edge.look)
        yield "    " + _remark(edge.summary_line())
        for fields in _tables(edge):
            yield from _item(fields)
        yield from _notes(edge)
    if graph.entities:
        yield "  entities:  # tables of entities: all their ids get vectors"
        for entities in graph.entities:
            yield from _comment(entities.look)
            yield from _item(_files(entities.look) | {"type": entities.type, "id": entities.id.name})
    yield "  on_bad_row: quarantine  # bad rows go to the folder `quarantine`; fail: they stop the run"
    yield "  max_bad_fraction: 0.05  # with more bad rows the run stops"
    if all(edge.look.split in (None, "train") for edge in graph.edges):
        yield f"  holdout: {{test: {HOLDOUT}}}  # fraction of the edges that measures the vectors"


def _comment(look: Look) -> Iterator[str]:
    rows = f"{look.num_rows:,} rows" if look.is_whole else f"the first {look.num_rows:,} rows"
    columns = [f"{column.name} {column.type}, {len(column.distinct):,} distinct" for column in look.columns]
    yield "    " + _remark(f"{look.path}, {rows}: {'; '.join(columns)}")


def _remark(text: str) -> str:
    """Return a comment of one line; names of files and columns may have line ends."""
    return "# " + "".join(sign if sign.isprintable() else " " for sign in text)


def _tables(edges: GuessedEdges) -> Iterator[dict[str, Any]]:
    """Yield the entries of `etl.tables` of a table: several, where the types of rows take filters."""
    fields = _files(edges.look) | {"lhs": edges.lhs.name, "rhs": edges.rhs.name}
    if edges.look.split not in (None, "train"):
        fields["split"] = edges.look.split
    conditions = [list(condition) for every in edges.filters for condition in every]
    for name, rows in edges.by_filters():
        filters = [*conditions, *map(list, rows)]
        fields |= {"relation": name} if name is not None else {}
        if name is None and edges.relation is not None:
            fields["relation_column"] = edges.relation.name
        yield fields | ({"filters": filters} if filters else {})


def _notes(edges: GuessedEdges) -> Iterator[str]:
    if edges.weight:
        yield f"      # weight: {_quoted(edges.weight.name)}  # weights of the edges' losses"
    for column in edges.look.columns:
        if column.is_of_path and column is not edges.relation and len(column.distinct):
            condition = as_yaml([column.name, "==", column.distinct[0].as_py()])
            yield "      " + _remark(f"filters: [{condition}]  # rows to read; other files are not opened")
            break
    if edges.time and edges.look.split is None:
        yield from _by_time(edges)


def _by_time(edges: GuessedEdges) -> Iterator[str]:
    assert edges.time is not None
    values = pc.drop_null(edges.time.values)
    is_number = edges.time.kind != "time"
    ordered = sorted(values.to_pylist(), key=float if is_number else str)
    if not (is_number or ordered[0][:4].isdigit()):
        return  # 31/12/2026, whose order as text is another than in time
    border: object = ordered[int((1 - HOLDOUT) * len(ordered))]
    border = int(float(str(border))) if is_number else border
    first = next(iter(_tables(edges)))
    before, after = (
        first | {"filters": [*first.get("filters", ()), [edges.time.name, sign, border]]}
        for sign in ("<", ">=")
    )
    yield "    " + _remark(
        f"{edges.time.name} looks like time. To test on later edges, write in place of this entry,"
    )
    yield "    # and of `holdout`, which flatters:"
    for line in [*_item(before), *_item(after | {"split": "test"})]:
        yield f"    # {line.removeprefix('    ')}"


def _files(look: Look) -> dict[str, Any]:
    """Keys that say which files to read, and how, where that is not the default."""
    reading = look.options.model_dump(mode="json", exclude_defaults=True, exclude={"path"})
    return {"path": look.path, **reading}


def _item(fields: dict[str, object]) -> Iterator[str]:
    start = "    - "
    for key, value in fields.items():
        yield f"{start}{key}: {_quoted(value)}"
        start = "      "


def _quoted(value: object) -> str:
    """Return a value of YAML, without quotes where a word needs none."""
    is_plain = isinstance(value, str) and value.isidentifier() and value.lower() not in _WORDS
    return str(value) if is_plain else as_yaml(value)


_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}


def first_configuration(
    tables: Sequence[str], output: str | None, asked: Mapping[str, str | None]
) -> tuple[str, GuessedGraph]:
    """Return the text, and what was found in the tables; `asked` names the columns that users have named."""
    graph = guess(look_at(tables), AskedColumns(**asked))
    name = storage.name(tables[0].rstrip("/")).partition(".")[0]
    options = [word for key, value in asked.items() if value for word in (f"--{key}", value)]
    command_line = shlex.join(["graphmill", "init", *tables, *options])
    text = configuration(graph, output or f"output/{name}", command_line)
    return text + left_out(*_settled(text)), graph


def _settled(text: str) -> tuple[Config, int]:
    """Return the settings that a run of the configuration would take, and about how many edges it has."""
    filled, chosen = applied(parsed(text, "the configuration"))
    settings = from_mapping(filled)
    size = estimate(settings).size
    assert size is not None
    num_entities = {name: (count,) for name, count in size.num_entities.items()}
    num_edges = size.num_edges[TRAIN_SPLIT]
    return with_sizes(settings.with_chosen(chosen), num_entities, num_edges), num_edges
