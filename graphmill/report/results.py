"""Quality and uses of a run: ranking, probabilities, answers by raw id, exports, tables with vectors."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphmill.display.readable import duration, number, size
from graphmill.report.charts import Series, bars, curves
from graphmill.report.page import Block, Note, PageTable, PageTile, Tiles
from graphmill.run.reading import OF_FEATURES, Entry, interval, mapping, records, same_edges, total, verdict
from graphmill.storage.redaction import redacted

SIDES = {"lhs": "lhs asked for", "rhs": "rhs asked for"}
MAX_RELATIONS = 25
MAX_NAMED = 5
PESSIMISTIC = "_pessimistic"
BASELINES = {"neighbors": "neighbors", "most_popular": "most popular", "random": "random"}
FIRST = "top_"
SHOWN = f"{FIRST}10"
ERRORS = {"ece": "calibration error", "brier": "Brier score", "brier_base_rate": "Brier of the base rate"}
OF_ANSWERS = {
    "relation": "relation",
    "method": "method",
    "num_ids": "ids",
    "num_candidates": "candidates",
    "k": "k",
}


def ranking(entry: Entry, before: Entry) -> Iterator[Block]:
    """Blocks about the entry of evaluate in run.json; `before` is the evaluation before, or empty."""
    yield Note(*verdict(entry, before))
    yield Tiles(list(_ranking_tiles(entry)))
    columns = _columns(entry, before)
    compared = {name: column["mrr"] for name, column in columns.items() if "mrr" in column}
    if len(compared) > 1:
        note = (
            "Good: this run's bar is longer than those of the simple rankings. Random is any order; most "
            "popular puts those candidates first that have most train edges with the relation, and neighbors "
            "those that ids with the same edges have."
        )
        mrr = {"MRR": list(compared.values())}
        yield from bars("baselines", "MRR beside simple rankings", "MRR", list(compared), mrr, note=note)
    relations = records(entry, "metrics_by_relation")
    if len(relations) > 1:
        yield from _by_relation(relations, entry.get("num_relations_ranked", len(relations)))
    bands = {band_name(band): band for band in records(entry, "metrics_by_degree")}
    labels = [f"{name} edges" for name in bands]
    note = (
        "Long bars are good. Short bars at few edges are usual, because little is known of them. "
        "Short bars at many edges are bad: more epochs or a larger dimension may help."
    )
    title = "MRR by the degree of the entity asked for"
    yield from bars("degrees", title, "MRR", labels, _sides(list(bands.values())), note=note)
    yield _metrics(columns, same_edges(entry, before), entry)
    note = (
        "High figures are good, and bad where the MRR is not above those of the most popular and of random "
        "candidates. A relation with few ranked edges says little."
    )
    names = [str(relation.get("relation")) for relation in relations]
    yield _by_side("Metrics by relation", "relation", names, relations, note)
    note = "High figures are good; those of entities without train edges can only be low."
    yield _by_side("Metrics by degree", "train edges", list(bands), list(bands.values()), note)


def _ranking_tiles(entry: Entry) -> Iterator[PageTile]:
    metrics = mapping(entry, "metrics")
    for name in ("mrr", "hits@1", "hits@10", "mean_rank"):
        if name in metrics:
            yield PageTile(name, metrics[name])
    split = f"split {entry.get('split')}, {'filtered' if entry.get('filtered') else 'unfiltered'}"
    if entry.get("itself") == "left out":
        split += ", no entity is its own candidate"
    if metrics.get("sampled"):
        split += f", drawn from {number(metrics.get('of_edges'))}"
    yield PageTile("edges ranked", metrics.get("num_edges"), split)
    yield PageTile("time", duration(entry.get("seconds")))


def band_name(band: Entry) -> str:
    """`3-9`, or `10,000+`."""
    first, last = band["first"], band.get("last")
    if last is None:
        return f"{first:,}+"
    return f"{first:,}" if first == last else f"{first:,}-{last:,}"


def _columns(entry: Entry, before: Entry) -> dict[str, Entry]:
    """Metrics of this run, of the run before, and of the simple rankings, as far as run.json has them."""
    simple = mapping(entry, "baselines")
    columns = {"this run": mapping(entry, "metrics"), "run before": mapping(before, "metrics")}
    columns |= {shown: mapping(simple, name) for name, shown in BASELINES.items()}
    return {name: metrics for name, metrics in columns.items() if metrics}


def _metrics(columns: Mapping[str, Entry], is_same: bool, entry: Entry) -> Block:
    metrics = columns.get("this run", {})
    intervals = {name: text for name in metrics if (text := interval(entry, name))}
    rows = [
        [name, *(column.get(name) for column in columns.values()), metrics[name + PESSIMISTIC]]
        + ([intervals.get(name, "")] if intervals else [])
        for name in metrics
        if name + PESSIMISTIC in metrics
    ]
    heads = ["metric", *columns, "this run, all equal first", *(["95 % interval"] if intervals else [])]
    note = (
        "High figures are good, but a low mean_rank. Of equal scores, half count as better. Bad: a last "
        "column much worse than the first, because then the model gives many candidates the same score."
    )
    if "run before" in columns and not is_same:
        note += " The run before ranked other edges, so its column does not compare."
    if intervals:
        note += " The interval tells how far the metrics of all edges and all candidates may be from these."
    return PageTable("Metrics", heads, rows, note=note)


def _by_relation(relations: Sequence[Entry], num_all: int) -> Iterator[Block]:
    shown = relations[:MAX_RELATIONS]
    note = f"The {len(shown)} with most ranked edges, of {num_all}. " if num_all > len(shown) else ""
    worse = [str(relation.get("relation")) for relation in relations if _is_beaten(relation)]
    if worse:
        more = f" and {len(worse) - MAX_NAMED} more" if len(worse) > MAX_NAMED else ""
        note += f"Bad: the most popular candidates do better in {', '.join(worse[:MAX_NAMED])}{more}."
    else:
        note += "Long bars are good; a short bar among long ones is a relation that is not learned."
    labels = [str(relation.get("relation")) for relation in shown]
    yield from bars("relations", "MRR by relation", "MRR", labels, _sides(shown), note=note)


def _is_beaten(relation: Entry) -> bool:
    """Tell whether popularity ranks the relation's edges better, on both sides together."""
    sides = [mapping(relation, side) for side in SIDES]
    ahead = sum(float(part.get("mrr", 0)) - float(part.get("mrr_most_popular", 0)) for part in sides)
    return ahead < 0


def _sides(parts: Sequence[Entry]) -> dict[str, list[float]]:
    return {shown: [mapping(part, side).get("mrr", 0) for part in parts] for side, shown in SIDES.items()}


def _by_side(title: str, first: str, names: Sequence[str], parts: Sequence[Entry], note: str) -> Block:
    keys = {"edges": "num_edges", "MRR": "mrr"}
    keys |= {shown: f"mrr_{name}" for name, shown in BASELINES.items()} | {"hits@10": "hits@10"}
    known = {key for part in parts for side in SIDES for key in mapping(part, side)}
    keys = {shown: key for shown, key in keys.items() if key in known}
    columns = [first, *(f"{side} {shown}" for side in SIDES for shown in keys)]
    rows = [
        [name, *(mapping(part, side).get(key) for side in SIDES for key in keys.values())]
        for name, part in zip(names, parts, strict=True)
    ]
    return PageTable(title, columns, rows, folded=True, note=note)


def calibration(entry: Entry) -> Iterator[Block]:
    """Blocks about `calibration` of the stage evaluate: how far probabilities are from shares of truth."""
    shown = mapping(entry, SHOWN)
    tiles = [PageTile(f"{label}, 10 best", shown[key]) for key, label in ERRORS.items() if key in shown]
    splits = f"fitted on {entry.get('fitted_on')}, measured on {entry.get('measured_on')}"
    yield Tiles([*tiles, PageTile("queries", entry.get("num_queries"), splits)])
    rows = [[row["probability"], row["true"], row["answers"]] for row in records(shown, "reliability")]
    x, y = ([float(row[place]) for row in rows] for place in (0, 1))
    yield from curves(
        "reliability",
        title := "Reliability of the 10 best answers",
        "probability",
        "share of true answers",
        [Series("answers", x, y), Series("exact", [0, 1], [0, 1], "thin", is_rest=True)],
        note="Good: points near the grey line. Bad: points below it, whose probabilities promise too much.",
    )
    heads = ["probability", "share of true answers", "answers"]
    note = "Good: the first two columns are alike. Rows hold equally many answers."
    yield PageTable(title, heads, rows, folded=True, note=note)
    columns = {"num_answers": "answers", "true": "true"} | ERRORS
    kinds = {name.removeprefix(FIRST): kind for name, kind in entry.items() if name.startswith(FIRST)}
    rows = [[name, *map(kind.get, columns)] for name, kind in kinds.items()]
    note = (
        "Low figures are good. A Brier score near that of the base rate is bad: the probabilities then "
        "tell little more than the share of true answers."
    )
    yield PageTable("Calibration", ["best of a query", *columns.values()], rows, note=note)


def answers(notes: Sequence[Entry]) -> Iterator[Block]:
    """A table of what `graphmill predict` has written, from the notes that `graphmill.run.record` keeps."""
    heads = ["answers", *OF_ANSWERS.values(), "recall", "lists compared", "finished"]
    note = (
        "The recall is the share of the exact answers that were found, for a sample of ids, with two "
        "standard errors. Good: 1, or what --recall asks for."
    )
    yield PageTable("Answers of graphmill predict", heads, list(map(_answer, notes)), 3, note=note)


def _answer(note: Entry) -> list[Any]:
    recall, lists = "1, exact", "all candidates"
    if note.get("method") == "approximate":
        recall = f"{_fraction(note.get('recall'), 1)} ± {_fraction(note.get('recall_error'), 2)}"
        lists = f"{note.get('num_probed')} of {note.get('num_lists')}"
    to, *about, finished = (note.get(key, "") for key in ("to", *OF_ANSWERS, "finished"))
    return [redacted(str(to)), *about, recall, lists, finished]


def _fraction(value: Any, factor: int) -> str:
    return f"{factor * value:.4f}" if isinstance(value, float) else "-"


def exports(notes: Sequence[Entry]) -> Iterator[Block]:
    """A table of what `graphmill export` has written: its size, and what smaller vectors cost."""
    heads = ["folder", "format", "precision", "types", "vectors", "size", "of float32", "MRR", "loss of MRR"]
    note = (
        "Size: ids, vectors, and tables that decode them. MRR: of the stage evaluate with decoded vectors. "
        "Its loss: the MRR of exact vectors less that. Good: a loss small beside the interval of the MRR."
    )
    yield PageTable("Exports", heads, list(map(_export, notes)), note=note)


def _export(note: Entry) -> list[Any]:
    types, loss = mapping(note, "types"), mapping(note, "loss")
    own, tables, exact, rows = (
        sum(total(mapping(types, name).get(key, 0)) for name in types)
        for key in ("file_bytes", "table_bytes", "float32_bytes", "num_rows")
    )
    share = f"{100 * (own + tables) / exact:.1f} %" if exact else "-"
    lost = f"{loss['mrr_loss']:.4f}" if "mrr_loss" in loss else str(loss.get("not_measured", "none"))
    settings = (str(note.get(key)) for key in ("format", "precision"))
    made = [redacted(str(note.get("to"))), *settings, ", ".join(types), rows, size(own + tables), share]
    return [*made, mapping(loss, "decoded").get("mrr"), lost]


def features(notes: Sequence[Entry]) -> Iterator[Block]:
    """A table of what `graphmill features` has written, with a row for each column of ids."""
    rows = []
    for note in notes:
        to = redacted(str(note.get("to")))
        for name, counted in mapping(note, "columns").items():
            found = map(counted.get, OF_FEATURES)
            rows.append([to, name, note.get("num_rows"), *found, note.get("finished")])
    heads = ["folder", "column", "rows", *OF_FEATURES.values(), "finished"]
    said = "Rows by column of ids. Good: few ids that are not in the run."
    yield PageTable("Tables with vectors", heads, rows, 2, note=said)
