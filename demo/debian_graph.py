"""Make the demo's graph from Debian's package index.

Reads the stanzas that ``apt-cache dumpavail`` prints and writes raw edge tables, all columns strings:

    OUTPUT/
    ├── package_relations.parquet   source, relation, target   (depends, recommends, suggests, conflicts)
    ├── maintained_by.parquet       package, maintainer
    └── in_section.parquet          package, section

Rows are distinct and sorted: one index gives the same bytes with one pyarrow release.
Fields: Debian Policy Manual, chapters 5 (control files) and 7 (relationships).
"""

import io
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import click
import pyarrow as pa
import pyarrow.parquet as pq

RELATION_OF_FIELD = {
    "Depends": "depends",
    "Pre-Depends": "depends",
    "Recommends": "recommends",
    "Suggests": "suggests",
    "Conflicts": "conflicts",
    "Breaks": "conflicts",
}
# A third of the index that the demo does not need: packages for building, debugging and documentation.
LEFT_OUT_SECTIONS = frozenset({"debug", "doc", "kernel", "libdevel", "localization", "oldlibs"})
LEFT_OUT_NAMES = re.compile(r"-(dev|doc|docs|dbg|dbgsym|prof|cross)$|-(l10n|help|locale)-|-linux-gnu")

# Ignores the status of this machine: an installed package from elsewhere would replace Debian's.
DUMP_INDEX = ("apt-cache", "-o", "Dir::State::status=/dev/null", "dumpavail")

_PACKAGE_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_PERSON = re.compile(r"([^<>]+)<[^<>]*>")

Stanza = dict[str, str]
Edge = tuple[str, str, str]
"""source, relation, target"""


@dataclass(frozen=True)
class Graph:
    """Distinct edges of the index, and the numbers of packages and edges left out."""

    packages: frozenset[str]
    relations: frozenset[Edge]
    maintained_by: frozenset[tuple[str, str]]
    in_section: frozenset[tuple[str, str]]
    num_indexed: int
    num_left_out_kind: int
    num_left_out_core: int
    num_virtual: Counter[str]
    """By relation: edges of candidate packages to names that the index does not have."""


def stanzas(lines: Iterable[str]) -> Iterator[Stanza]:
    """Yield the fields of each stanza; lines of a continued field are joined by single spaces."""
    fields: Stanza = {}
    name = ""
    for line in lines:
        if not line.strip():
            if fields:
                yield fields
            fields, name = {}, ""
        elif line[0] in " \t":
            if name:
                fields[name] = f"{fields[name]} {line.strip()}".lstrip()
        else:
            name, _, value = line.partition(":")
            fields[name] = value.strip()
    if fields:
        yield fields


def related_names(relationship: str) -> set[str]:
    """Return the package names of a relationship field, alternatives separately.

    Dropped: versions ``(>= 1)``, architectures ``[amd64]``, profiles ``<!nocheck>``, qualifiers ``:any``.
    """
    matches = (_PACKAGE_NAME.match(clause.strip()) for clause in re.split(r"[,|]", relationship))
    return {match.group() for match in matches if match}


def maintainer_names(maintainer: str) -> set[str]:
    """Return the display names of a maintainer field, without addresses and names that contain one."""
    names = {" ".join(name.strip(' ,"').split()) for name in _PERSON.findall(maintainer)}
    return {name for name in names if name and "@" not in name}


def is_left_out(stanza: Stanza) -> bool:
    """Return whether the demo leaves out packages of this kind."""
    return section_name(stanza) in LEFT_OUT_SECTIONS or bool(LEFT_OUT_NAMES.search(stanza["Package"]))


def section_name(stanza: Stanza) -> str:
    """Return the section without its archive area: ``contrib/net`` is ``net``."""
    return stanza.get("Section", "").rpartition("/")[2]


def relation_edges(stanza: Stanza) -> set[Edge]:
    """Return the relations of a package to the names in its fields, except to itself."""
    package = stanza["Package"]
    return {
        (package, relation, target)
        for field_name, relation in RELATION_OF_FIELD.items()
        for target in related_names(stanza.get(field_name, ""))
        if target != package
    }


def core_of(edges: Iterable[Edge], min_neighbours: int) -> set[str]:
    """Return the k-core: the largest set of packages with at least `min_neighbours` neighbours in the set."""
    neighbours: defaultdict[str, set[str]] = defaultdict(set)
    for source, _, target in edges:
        neighbours[source].add(target)
        neighbours[target].add(source)
    loose = [package for package, others in neighbours.items() if len(others) < min_neighbours]
    while loose:
        package = loose.pop()
        for other in neighbours.pop(package, ()):
            neighbours[other].discard(package)
            if len(neighbours[other]) < min_neighbours:
                loose.append(other)
    return set(neighbours)


def graph_of(index: Iterable[Stanza], min_neighbours: int) -> Graph:
    """Return the graph of the kept packages, without relations to virtual packages.

    Packages are kept if their kind is kept and they have at least `min_neighbours` kept neighbours.
    """
    indexed = [stanza for stanza in index if stanza.get("Package")]
    known = {stanza["Package"] for stanza in indexed}
    candidates = [stanza for stanza in indexed if not is_left_out(stanza)]
    candidate_names = {stanza["Package"] for stanza in candidates}
    named: set[Edge] = set().union(*map(relation_edges, candidates))
    edges = {edge for edge in named if edge[2] in candidate_names}
    packages = core_of(edges, min_neighbours)
    kept = [stanza for stanza in candidates if stanza["Package"] in packages]
    return Graph(
        packages=frozenset(packages),
        relations=frozenset(edge for edge in edges if edge[0] in packages and edge[2] in packages),
        maintained_by=frozenset(
            (s["Package"], name) for s in kept for name in maintainer_names(s.get("Maintainer", ""))
        ),
        in_section=frozenset((s["Package"], section_name(s)) for s in kept if section_name(s)),
        num_indexed=len(known),
        num_left_out_kind=len(known) - len(candidate_names),
        num_left_out_core=len(candidate_names) - len(packages),
        num_virtual=Counter(relation for _, relation, target in named if target not in known),
    )


def write_table(path: Path, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    """Write sorted string rows as parquet, atomically (temporary name, then rename)."""
    ordered = sorted(rows)
    schema = pa.schema([pa.field(name, pa.string(), nullable=False) for name in columns])
    table = pa.table([[row[number] for row in ordered] for number in range(len(columns))], schema=schema)
    unfinished = path.with_name(f".{path.name}.unfinished")
    pq.write_table(table, unfinished, compression="zstd", compression_level=19)
    unfinished.replace(path)


def write_graph(graph: Graph, folder: Path) -> None:
    """Write the three tables into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_table(folder / "package_relations.parquet", ("source", "relation", "target"), graph.relations)
    write_table(folder / "maintained_by.parquet", ("package", "maintainer"), graph.maintained_by)
    write_table(folder / "in_section.parquet", ("package", "section"), graph.in_section)


def report_lines(graph: Graph) -> Iterator[str]:
    """Yield the numbers of kept and dropped packages and edges, one line per figure."""
    yield (
        f"packages: {len(graph.packages)} of {graph.num_indexed}; left out "
        f"{graph.num_left_out_kind} by their kind, {graph.num_left_out_core} by their few neighbours"
    )
    yield f"maintainers: {len({name for _, name in graph.maintained_by})}"
    yield f"sections: {len({name for _, name in graph.in_section})}"
    num_edges = Counter(relation for _, relation, _ in graph.relations)
    for relation in dict.fromkeys(RELATION_OF_FIELD.values()):
        num_virtual = graph.num_virtual[relation]
        yield f"{relation}: {num_edges[relation]} edges; dropped {num_virtual} to virtual or absent packages"
    yield f"maintained_by: {len(graph.maintained_by)} edges"
    yield f"in_section: {len(graph.in_section)} edges"


def package_index(source: TextIO | None) -> TextIO:
    """Return the given index, or the index of apt on this machine.

    Raises:
        click.ClickException: there is no apt, or apt fails.
    """
    if source is not None:
        return source
    try:
        dump = subprocess.run(DUMP_INDEX, check=True, stdout=subprocess.PIPE)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        raise click.ClickException(
            f"expected a machine with apt, or an INDEX; `apt-cache` failed: {error}"
        ) from error
    return io.StringIO(dump.stdout.decode("utf-8"))


@click.command()
@click.argument("index", type=click.File("r", encoding="utf-8"), required=False)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(__file__).parent / "debian",
    show_default="debian/ beside this script",
    help="Folder of the tables.",
)
@click.option(
    "--min-neighbours",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="Neighbours of a kept package.",
)
def main(index: TextIO | None, output: Path, min_neighbours: int) -> None:
    """Write the package graph of INDEX: file, - for standard input, or what `apt-cache dumpavail` says."""
    graph = graph_of(stanzas(package_index(index)), min_neighbours)
    if not (graph.relations and graph.maintained_by and graph.in_section):
        raise click.ClickException(
            f"expected the stanzas of `apt-cache dumpavail`, found {graph.num_indexed} packages without "
            "a whole graph among them; run `apt-get update` first or pass another INDEX"
        )
    write_graph(graph, output)
    for line in report_lines(graph):
        click.echo(line)


if __name__ == "__main__":
    main()
