"""Estimates what the ETL stage takes, from the beginnings of the tables."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from etl.survey.sample import first_rows
from etl.tables.data_file import DataFile
from etl.tables.files import find_files
from etl.tables.filters import columns_of, filter_field, rows_that_pass
from etl.tables.formats import FileRange
from etl.tables.ranges import find_ranges
from graphmill.config import Config
from graphmill.config.sections.etl import EntityTableConfig, EtlConfig, Table, TableConfig
from graphmill.display.readable import duration, number, size
from graphmill.run.job import Estimate, GraphSize, Rows
from graphmill.vocab import TRAIN_SPLIT

ROWS_PER_CORE_S = 1_000_000  # docs/benchmarks/figures.md
_CHUNK_BYTES, _ROW_BYTES = 0.35 * 2**30, 0.1 * 2**30 / 1e6  # docs/how_to/etl.md, of a task
MAX_HEADS = 20


def estimate(config: Config) -> Estimate:
    """Estimate rows, entities, memory and time."""
    etl = config.section(EtlConfig)
    rows: Rows = {}
    num_edges: Counter[str] = Counter()
    values: dict[str, Counter[str]] = {name: Counter() for name in config.entities}
    scales = dict.fromkeys(config.entities, 1.0)
    tables: list[Table] = [*etl.tables, *etl.entities]
    for table in tables:
        files = find_files(config, table).files()
        num_rows, first = _count(table, files)
        rows[f"table {', '.join(table.path)}"] = f"about {number(num_rows)} rows, files: {number(len(files))}"
        if isinstance(table, TableConfig):
            num_edges[table.split] += num_rows
        for name, sample in _ids(config, table, first):
            values[name].update(sample)
            scales[name] = max(scales[name], num_rows / max(len(sample), 1))
    num_entities = {name: estimate_distinct(values[name], scales[name]) for name in config.entities}
    for name, count in num_entities.items():
        text = f"about {number(count)}"
        partitions = config.entities[name].num_partitions
        rows[f"entities, {name}"] = text if partitions == 1 else f"{text} in {partitions} partitions"
    num_rows = sum(num_edges.values())
    rows["etl, memory per task"] = size(_CHUNK_BYTES + _ROW_BYTES * min(etl.chunk_rows, num_rows))
    rows["etl, time of one core"] = f"about {duration(max(1, num_rows / ROWS_PER_CORE_S))}"
    taken = {split: round(fraction * num_edges[TRAIN_SPLIT]) for split, fraction in etl.holdout.items()}
    num_edges.update({**taken, TRAIN_SPLIT: -sum(taken.values())})
    return Estimate(rows, GraphSize(num_edges, num_entities))


def _count(table: Table, files: list[DataFile]) -> tuple[int, FileRange | None]:
    """Estimate the rows of a table by the heads of files from first to last, and return its first range."""
    chosen = files[:: -(-len(files) // MAX_HEADS) or 1]
    heads = [find_ranges(table, file, chunk_rows=1 << 20) for file in chosen]
    num_rows = sum(file_range.num_rows for ranges in heads for file_range in ranges)
    num_bytes, of_chosen = (sum(file.num_bytes() for file in some) for some in (files, chosen))
    share = of_chosen / max(num_bytes, 1)
    first = next((file_range for ranges in heads for file_range in ranges), None)
    passing = 1.0
    if first and first.filters:
        rows = first_rows(replace(first, filters=()))
        columns = {column: rows[filter_field(column)] for column in columns_of(first.filters)}
        passing = float(pc.mean(rows_that_pass(first.filters, columns).cast(pa.int8())).as_py() or 0)
    return round(num_rows * passing / share) if share else 0, first


def _ids(config: Config, table: Table, first: FileRange | None) -> Iterator[tuple[str, list[str]]]:
    if first is None:
        return
    sample = first_rows(first).select([*first.table.columns()]).to_pydict()
    if isinstance(table, EntityTableConfig):
        yield table.type, [raw_id for raw_id in sample["id"] if raw_id is not None]
        return
    assert isinstance(table, TableConfig)  # a run's tables are of these
    relations = {relation.name: relation for relation in config.relations}
    entry = config.relations[0] if config.dynamic_relations else None
    names = sample.get("relation", [table.relation or ""] * len(sample["lhs"]))
    for side in ("lhs", "rhs"):
        ids: dict[str, list[str]] = {}
        for name, raw_id in zip(names, sample[side], strict=True):
            if raw_id is not None and (relation := entry or relations.get(name)):
                kind = getattr(relation, side)
                cut = table.feature_delimiter if config.entities[kind].featurized else None
                ids.setdefault(kind, []).extend(raw_id.split(cut) if cut else [raw_id])
        yield from ids.items()


def estimate_distinct(sample: Counter[str], scale: float) -> int:
    """Estimate the number of distinct values of which `sample` is one part in `scale`.

    The guaranteed-error estimator: values that occur once stand for sqrt(scale) values each (Charikar et al.,
    Towards Estimation Error Guarantees for Distinct Values, PODS 2000).
    """
    once = sum(count == 1 for count in sample.values())
    return round(math.sqrt(scale) * once + len(sample) - once)
