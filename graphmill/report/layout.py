"""Places of vectors on a map: t-SNE where openTSNE is installed, else principal components.

    results/map-{dimension}.json    the places of a run's sample, until its vectors change

Both compare vectors by their cosine, as `neighbors` does. t-SNE (van der Maaten and Hinton 2008; openTSNE,
Poličar et al. 2024) keeps near vectors near, so that groups are apart; distances between groups mean little.

Shapes: N vectors, D dimension.
"""

import json
import logging
from contextlib import suppress
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from graphmill import storage
from graphmill.ask.neighbors import unit
from graphmill.ask.principal import Components, Moments
from graphmill.checkpoints import Floats
from graphmill.errors import GraphMillError
from graphmill.storage.checksums import of_bytes

PERPLEXITY = 30
MIN_VECTORS = 1000  # of t-SNE, whose import takes longer than all else of the report of a small run
THETA = 0.8  # Barnes and Hut's: a quarter faster than openTSNE's .5, and the groups are the same
ITERATIONS = {"early_exaggeration_iter": 125, "n_iter": 250}  # half of openTSNE's: as good for so few vectors
FIRST_SPREAD = 1e-4  # the standard deviation that t-SNE starts with

Places = npt.NDArray[np.float64]

log = logging.getLogger("graphmill")


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
        storage.write_text(uri, json.dumps(content) + "\n")
    except GraphMillError as error:
        log.debug("report: the places of the map are not kept: %s", error)
    return made


def layout(vectors_ND: Floats) -> Layout:
    """Place the vectors; equal vectors give an equal map."""
    unit_ND = unit(vectors_ND)
    if len(unit_ND) >= MIN_VECTORS and (places_N2 := tsne(unit_ND)) is not None:
        said = "Vectors with a high cosine are near each other (t-SNE); distances between groups mean little."
        return Layout(places_N2, ("t-SNE 1", "t-SNE 2"), said)
    places_N2, share = project(unit_ND)
    said = f"The two directions in which vectors differ most hold {share:.0%} of the differences"
    if not find_spec("openTSNE"):
        said += "; pip install 'graphmill[map]' gives a map that shows groups better, of many vectors"
    return Layout(places_N2, ("first principal component", "second principal component"), f"{said}.")


def tsne(unit_ND: Floats) -> Places | None:
    """t-SNE in one thread with a fixed seed: [N, 2]; None without openTSNE, and of vectors all equal."""
    start_N2, _ = project(unit_ND)
    spread = start_N2[:, 0].std()
    try:
        import openTSNE
    except ImportError:
        return None
    if not spread:
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
