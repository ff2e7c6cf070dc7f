"""Writes the configuration of a guessed graph as YAML with comments."""

import json
from collections.abc import Iterator

from etl.survey.look import SAMPLE_ROWS, Look
from etl.survey.roles import Edges, Graph

HOLDOUT = 0.05


def configuration(graph: Graph, output: str, command: str) -> str:
    """YAML of a run over `graph` that writes to the folder `output`; `command` made the text."""
    return "\n".join(
        [*_head(output, command), *_entities(graph), *_relations(graph), *_etl(graph), *_train(), ""]
    )


def _head(output: str, command: str) -> list[str]:
    return [
        f"# Made by `{command}`. All keys: `graphmill schema --format markdown`.",
        "# Check it: graphmill check --conf THIS_FILE. Run it: graphmill pipeline --conf THIS_FILE.",
        "",
        "# The folder of all results, local or hdfs://. Its folder `embeddings` has the vectors by raw id.",
        f"output: {_quoted(output)}",
    ]


def _entities(graph: Graph) -> Iterator[str]:
    yield from (
        "",
        "# Types of entities. Columns with the same values, or the same name, are of one type.",
        "entities:",
    )
    for name in graph.types:
        yield f"  {_quoted(name)}: {{}}"


def _relations(graph: Graph) -> Iterator[str]:
    ends = {(each.lhs_type, each.rhs_type) for each in graph.edges}
    columns = [each for each in graph.edges if each.relation]
    yield ""
    if columns and len(ends) == 1:
        yield "# The relations are numbered as the tables name them; one entry stands for all."
        yield "dynamic_relations: true"
        entries = [("all", *next(iter(ends)))]
    elif columns:
        yield f"# The relations in the first {SAMPLE_ROWS:,} rows of each table; add those that are missing."
        entries = [(name, each.lhs_type, each.rhs_type) for each in graph.edges for name in _names(each)]
    else:
        entries = [(each.relation_name, each.lhs_type, each.rhs_type) for each in graph.edges]
    entries = list(dict.fromkeys(entries))
    operator = "complex_diagonal" if columns or len(entries) > 1 or entries[0][1] == entries[0][2] else "none"
    yield "relations:"
    for name, lhs, rhs in entries:
        yield f"  - {{name: {_quoted(name)}, lhs: {_quoted(lhs)}, rhs: {_quoted(rhs)}, operator: {operator}}}"


def _names(edges: Edges) -> list[str]:
    return sorted(edges.relation.distinct.to_pylist()) if edges.relation else [edges.relation_name]


def _etl(graph: Graph) -> Iterator[str]:
    yield from ("", "etl:", "  tables:")
    for each in graph.edges:
        yield from _comment(each.look)
        yield from _table(each)
    if graph.entities:
        yield "  entities:  # tables of entities: all their ids get vectors"
        for entities in graph.entities:
            yield from _comment(entities.look)
            fields = {"path": entities.look.path, **_reading(entities.look)}
            yield from _item(fields | {"type": entities.type, "id": entities.id.name})
    yield "  on_bad_row: quarantine  # bad rows go to the folder `quarantine`; fail: they stop the run"
    yield "  max_bad_fraction: 0.05  # with more bad rows the run stops"
    if all(each.look.split in (None, "train") for each in graph.edges):
        yield f"  holdout: {{test: {HOLDOUT}}}  # fraction of the edges that measures the vectors"


def _comment(look: Look) -> Iterator[str]:
    rows = f"{look.num_rows:,} rows" if look.is_whole else f"the first {look.num_rows:,} rows"
    columns = [f"{column.name} {column.type}, {len(column.distinct):,} distinct" for column in look.columns]
    yield f"    # {look.path}, {rows}: {'; '.join(columns)}"


def _table(edges: Edges) -> Iterator[str]:
    fields: dict[str, object] = {"path": edges.look.path, **_reading(edges.look)}
    fields |= {"lhs": edges.lhs.name, "rhs": edges.rhs.name}
    if edges.relation:
        fields["relation_column"] = edges.relation.name
    else:
        fields["relation"] = edges.relation_name
    if edges.look.split not in (None, "train"):
        fields["split"] = edges.look.split
    yield from _item(fields)
    if edges.weight:
        yield f"      # weight: {_quoted(edges.weight.name)}  # weights of the edges' losses"
    for column in edges.look.columns:
        if column.is_of_path and column is not edges.relation and len(column.distinct):
            condition = json.dumps([column.name, "==", column.distinct[0].as_py()], ensure_ascii=False)
            yield f"      # filters: [{condition}]  # rows to read; other files are not opened"
            break


def _reading(look: Look) -> dict[str, object]:
    """Keys that say how to read the files, where they are not the defaults."""
    return look.options.model_dump(mode="json", exclude_defaults=True, exclude={"path"})


def _item(fields: dict[str, object]) -> Iterator[str]:
    start = "    - "
    for key, value in fields.items():
        yield f"{start}{key}: {_quoted(value)}"
        start = "      "


def _train() -> list[str]:
    return [
        "",
        "# Keys that are left out get values that fit the size of the graph, as the log says. Some of them:",
        "# dimension: 200        # length of each vector",
        "# num_epochs: 16        # times that each edge is trained on",
        "# lr: 0.1               # learning rate",
    ]


def _quoted(value: object) -> str:
    """A scalar of YAML: JSON's form, without quotes where a word needs none."""
    text = json.dumps(value, ensure_ascii=False)
    return (
        str(value)
        if isinstance(value, str) and value.isidentifier() and value.lower() not in _WORDS
        else text
    )


_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
