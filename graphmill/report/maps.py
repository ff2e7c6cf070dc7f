"""Maps of a sample of the vectors: by t-SNE where openTSNE is installed, else principal components. Colours
tell the types of entities, or the labels that the user names: two columns of a table.

    results/map-{dimension}.json    the places of a run's sample, until its vectors change

Both ways compare vectors by their cosine, as `neighbors` does. t-SNE (van der Maaten and Hinton 2008;
openTSNE, Poličar et al. 2024) keeps near vectors near, so that groups are apart; distances between groups
mean little.

Shapes: N vectors, D dimension.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import compress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from graphmill import storage
from graphmill.ask.neighbors import unit
from graphmill.ask.principal import Components, Moments
from graphmill.checkpoints import Floats
from graphmill.errors import ConfigError, GraphMillError
from graphmill.formats.parquet import bounds, open_parquet
from graphmill.formats.raw_tables.columns import column_names, iter_strings
from graphmill.library.run import Run
from graphmill.report.charts import Series, curves
from graphmill.report.page import Block, Note
from graphmill.run.record import RESULTS
from graphmill.storage.checksums import of_bytes

SAMPLE_ROWS = 3000
"""Number of vectors, of all types together."""
MAX_TYPES = 8
MAX_COLOURS = 10
REST = "other"
NO_LABEL = "without label"
ID_CHARS = 100
PERPLEXITY = 30
MIN_VECTORS = 1000  # of t-SNE, whose import takes longer than all else of the report of a small run
THETA = 0.8  # Barnes and Hut's: a quarter faster than openTSNE's .5, and the groups are the same
ITERATIONS = {"early_exaggeration_iter": 125, "n_iter": 250}  # half of openTSNE's: as good for so few vectors
FIRST_SPREAD = 1e-4  # the standard deviation that t-SNE starts with

Places = npt.NDArray[np.float64]

log = logging.getLogger("graphmill")


@dataclass(frozen=True)
class Labels:
    """Columns of raw ids and of labels of a file, parquet or CSV, about one entity type."""

    uri: str
    columns: tuple[str, str] = ("id", "label")
    entity_type: str | None = None
    """None: the first type that has embeddings."""

    def of(self, raw_ids: list[str]) -> dict[str, str]:
        """The label of each of `raw_ids` that has one; of several labels of an id, the first.

        Reads the file in batches.
        """
        wanted, label_of = pa.array(raw_ids, pa.string()), dict[str, str]()
        for columns in self._batches():
            table = pa.table(columns, ["id", "label"])
            texts = table.filter(pc.is_in(table["id"], wanted)).drop_null()
            for raw_id, label in zip(texts["id"].to_pylist(), texts["label"].to_pylist(), strict=True):
                label_of.setdefault(raw_id, label)
        return label_of

    def _batches(self) -> Iterator[list[pa.Array]]:
        """Batches of the two columns; an empty field of CSV is no label."""
        if self.uri.endswith(".parquet"):
            with open_parquet(self.uri) as parquet:
                bounds.check_whole(parquet, self.uri)
                self._check(parquet.schema_arrow.names)
                for batch in parquet.iter_batches(columns=list(self.columns)):
                    yield [batch.column(name).cast(pa.string()) for name in self.columns]
            return
        names = column_names(self.uri)
        self._check(names)
        for ids, labels in iter_strings(self.uri, [names.index(name) for name in self.columns]):
            yield [ids, pc.if_else(pc.equal(labels, ""), None, labels)]

    def _check(self, names: list[str]) -> None:
        for column in self.columns:
            if column not in names:
                there = ", ".join(names)
                raise ConfigError(
                    f"{self.uri}: expected a column {column!r}, found {there}; give the columns of ids and "
                    "of labels with --label-columns"
                )


def maps(run: Run, labels: Labels | None) -> Iterator[Block]:
    """One map for each length of vectors; with `labels`, one map of the type that has them."""
    filled = [name for name, count in run.num_entities.items() if count]
    if labels is not None:
        yield from _labelled(run, filled, labels)
        return
    for dimension in sorted({run.dimension(name) for name in filled}):
        yield from _by_type(run, [name for name in filled if run.dimension(name) == dimension])


def _by_type(run: Run, names: list[str]) -> Iterator[Block]:
    shown = names[:MAX_TYPES]
    samples = {name: sampled(run, name, SAMPLE_ROWS // len(shown)) for name in shown}
    groups = [name for name, (ids, _) in samples.items() for _ in ids]
    tips = [f"{name} {raw_id}" for name, (ids, _) in samples.items() for raw_id in ids]
    title = f"A map of {len(tips):,} embeddings"
    said = "Good: groups that mean something to you; point at them to see their ids. Bad: one even cloud."
    more = f" {len(names) - len(shown)} more types are not shown." if len(names) > len(shown) else ""
    sample_ND = np.concatenate([sample_ND for _, sample_ND in samples.values()])
    yield from _map(run, sample_ND, groups, tips, title, said, more)


def _labelled(run: Run, filled: list[str], labels: Labels) -> Iterator[Block]:
    name = labels.entity_type or next(iter(filled), "")
    if name not in filled:
        raise ConfigError(f"--type: expected one of {', '.join(filled) or 'no type'}, found {name!r}")
    ids, sample_ND = sampled(run, name, SAMPLE_ROWS)
    label_of = labels.of(ids)
    if not label_of:
        yield Note(f"No id of {name} in the map has a label in {labels.uri}.", "warning")
    groups = [label_of.get(raw_id, NO_LABEL) for raw_id in ids]
    tips = [f"{raw_id}: {label}" for raw_id, label in zip(ids, groups, strict=True)]
    column = labels.columns[1]
    said = f"Good: each {column} has a place of its own. Bad: all colours are mixed."
    title = f"A map of {len(ids):,} {name} embeddings by {column}"
    yield from _map(run, sample_ND, groups, tips, title, said)


def _map(
    run: Run, vectors_ND: Floats, groups: list[str], tips: list[str], title: str, said: str, more: str = ""
) -> Iterator[Block]:
    """A map with the most frequent groups in colours of their own, the rest in grey."""
    count, dimension = vectors_ND.shape
    if count < 3 or dimension < 2:
        return
    placed = kept_layout(storage.join(run.uri, RESULTS, f"map-{dimension}.json"), vectors_ND)
    counts = Counter(groups)
    counts.pop(NO_LABEL, None)
    most = [name for name, _ in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:MAX_COLOURS]]
    rows: dict[str, list[int]] = {name: [] for name in (*most, REST)}
    for row, name in enumerate(groups):
        rows[name if name in rows else REST].append(row)
    series = [
        Series(name, x, y, "points", [tips[row][:ID_CHARS] for row in own], is_rest=name == REST)
        for name, own in rows.items()
        if own
        for x, y in [placed.places[own].T.tolist()]
    ]
    note = f"{said} {placed.meaning}{more}"
    yield from curves(f"map-{dimension}", title, *placed.axes, series, is_square=True, note=note)


def sampled(run: Run, entity_type: str, num_rows: int) -> tuple[list[str], Floats]:
    """Raw ids [N] and vectors [N, D] of about so many rows, from all partitions alike; the finite ones.

    Rows lie in the order of a hash of their ids, so the first rows of every partition are a random sample.
    """
    ids, vectors_ND = run.vectors(entity_type, max_rows=num_rows)
    is_finite_N = np.logical_and.reduce(np.isfinite(vectors_ND), axis=1)
    return [*compress(ids, is_finite_N)], vectors_ND[is_finite_N]


class Layout(NamedTuple):
    """Places of vectors, [N, 2], the names of the axes, and what the places mean."""

    places: Places
    axes: tuple[str, str]
    meaning: str


def kept_layout(uri: str, vectors_ND: Floats) -> Layout:
    """The layout in the file `uri`, if it is one of these vectors; else a new one, which is kept there.

    t-SNE takes seconds, and commands write the report of a run whose vectors are still the same.
    """
    method = "t-SNE" if find_spec("openTSNE") else "principal components"
    of = f"{method} of {vectors_ND.shape}, {of_bytes(vectors_ND.tobytes())}"
    with suppress(GraphMillError, LookupError, TypeError, ValueError):  # there is none, or one of others
        kept = storage.read_json(uri)
        places_N2 = np.array(kept["places"], np.float64)
        if kept["of"] == of and places_N2.shape == (len(vectors_ND), 2) and np.isfinite(places_N2).all():
            first, second = map(str, kept["axes"])
            return Layout(places_N2, (first, second), str(kept["meaning"]))
    made = layout(vectors_ND)
    content = {"of": of, "axes": made.axes, "meaning": made.meaning, "places": made.places.tolist()}
    try:
        storage.write_json(uri, content)
    except GraphMillError as error:
        log.debug("report: the places of the map are not kept: %s", error)
    return made


def layout(vectors_ND: Floats) -> Layout:
    """Place the vectors; equal vectors give an equal map."""
    unit_ND = unit(vectors_ND)
    has_tsne = find_spec("openTSNE") is not None
    if has_tsne and len(unit_ND) >= MIN_VECTORS and (places_N2 := tsne(unit_ND)) is not None:
        said = "Vectors with a high cosine are near each other (t-SNE); distances between groups mean little."
        return Layout(places_N2, ("t-SNE 1", "t-SNE 2"), said)
    places_N2, share = project(unit_ND)
    said = f"The two directions in which vectors differ most hold {share:.0%} of the differences"
    if not has_tsne:
        said += "; pip install 'graphmill[map]' gives a map that shows groups better, of many vectors"
    return Layout(places_N2, ("first principal component", "second principal component"), f"{said}.")


def tsne(unit_ND: Floats) -> Places | None:
    """t-SNE in one thread with a fixed seed: [N, 2]; None of vectors all equal."""
    import openTSNE

    start_N2, _ = project(unit_ND)
    if not (spread := start_N2[:, 0].std()):
        return None
    method = openTSNE.TSNE(
        perplexity=PERPLEXITY,
        theta=THETA,
        initialization=start_N2 / spread * FIRST_SPREAD,
        neighbors="exact",
        n_jobs=1,
        random_state=0,
        **ITERATIONS,
    )
    places_N2: Places = np.asarray(method.fit(unit_ND), np.float64)
    return places_N2.round(3)


def project(vectors_ND: Floats) -> tuple[Places, float]:
    """Principal components: [N, 2], each with its largest value positive, and the share of the variance."""
    components = Components.of(Moments.of(vectors_ND), 2)
    place_N2 = components(vectors_ND).astype(np.float64)
    sign = np.sign(place_N2[np.abs(place_N2).argmax(axis=0), [0, 1]])
    return np.round(place_N2 * np.where(sign == 0, 1, sign), 5), float(components.share_K.sum())
