"""A map of a sample of vectors, coloured by entity type, or by labels that the user names."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from graphmill import storage
from graphmill.ask.nearest import Floats
from graphmill.errors import ConfigError
from graphmill.library.run import Run
from graphmill.report.blocks import Block, Curves, Note, Series
from graphmill.report.labels import Labels
from graphmill.report.layout import Layout, Places, kept_layout
from graphmill.report.sample import MAX_TYPES, SAMPLE_ROWS, sampled
from graphmill.run.results import FOLDER

MAX_COLOURS = 10
REST = "other"
NO_LABEL = "without label"
ID_CHARS = 100


def maps(run: Run, labels: Labels | None) -> Iterator[Block]:
    """One map for each length of vectors; with `labels`, one map of the type that has them."""
    filled = [name for name, count in run.num_entities.items() if count]
    if labels is not None:
        yield from _labelled(run, filled, labels)
        return
    for dimension in sorted({run.dimension(name) for name in filled}):
        names = [name for name in filled if run.dimension(name) == dimension]
        yield from _by_type(run, names, dimension)


def _by_type(run: Run, names: list[str], dimension: int) -> Iterator[Block]:
    shown = names[:MAX_TYPES]
    samples = {name: sampled(run, name, SAMPLE_ROWS // len(shown)) for name in shown}
    if sum(len(ids) for ids, _ in samples.values()) < 3 or dimension < 2:
        return
    found = _layout(run, np.concatenate([sample_ND for _, sample_ND in samples.values()]))
    groups = [name for name, (ids, _) in samples.items() for _ in ids]
    tips = [f"{name} {each}"[:ID_CHARS] for name, (ids, _) in samples.items() for each in ids]
    said = "Good: groups that mean something to you; point at them to see their ids. Bad: one even cloud."
    more = f" {len(names) - len(shown)} more types are not shown." if len(names) > len(shown) else ""
    series = _series(found.places, groups, tips)
    title = f"A map of {len(tips):,} embeddings"
    note = f"{said} {found.meaning}{more}"
    yield Curves(f"map-{dimension}", title, *found.axes, series, square=True, note=note)


def _labelled(run: Run, filled: list[str], labels: Labels) -> Iterator[Block]:
    name = labels.entity_type or next(iter(filled), "")
    if name not in filled:
        raise ConfigError(f"--type: expected one of {', '.join(filled) or 'no type'}, found {name!r}")
    ids, sample_ND = sampled(run, name, SAMPLE_ROWS)
    label_of = labels.of(ids)
    if not label_of:
        yield Note(f"No id of {name} in the map has a label in {labels.uri}.", "warning")
    if len(ids) < 3 or sample_ND.shape[1] < 2:
        return
    found = _layout(run, sample_ND)
    groups = [label_of.get(each, NO_LABEL) for each in ids]
    tips = [f"{each}: {label}"[:ID_CHARS] for each, label in zip(ids, groups, strict=True)]
    series = _series(found.places, groups, tips)
    column = labels.columns[1]
    note = f"Good: each {column} has a place of its own. Bad: all colours are mixed. {found.meaning}"
    title = f"A map of {len(ids):,} {name} embeddings by {column}"
    yield Curves(f"map-{sample_ND.shape[1]}", title, *found.axes, series, square=True, note=note)


def _layout(run: Run, vectors_ND: Floats) -> Layout:
    return kept_layout(storage.join(run.uri, FOLDER, f"map-{vectors_ND.shape[1]}.json"), vectors_ND)


def _series(places: Places, groups: list[str], tips: list[str]) -> list[Series]:
    """The most frequent groups in colours of their own, the rest in grey."""
    counts = Counter(groups)
    counts.pop(NO_LABEL, None)
    most = [name for name, _ in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:MAX_COLOURS]]
    rows: dict[str, list[int]] = {name: [] for name in (*most, REST)}
    for row, name in enumerate(groups):
        rows[name if name in rows else REST].append(row)
    return [
        Series(
            name,
            places[own, 0].tolist(),
            places[own, 1].tolist(),
            "points",
            [tips[row] for row in own],
            is_rest=name == REST,
        )
        for name, own in rows.items()
        if own
    ]
