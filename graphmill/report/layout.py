"""Places of vectors on a map: t-SNE where openTSNE is installed, else principal components.

Both compare vectors by their cosine, as `neighbors` does. t-SNE (van der Maaten and Hinton 2008; openTSNE,
Poličar et al. 2024) keeps near vectors near, so that groups are apart; distances between groups mean little.

Shapes: N vectors, D dimension.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from graphmill.library.nearest import Floats, unit

MIN_NEIGHBORHOOD = 20  # vectors, from which on neighbourhoods mean something
PERPLEXITY = 30
FIRST_SPREAD = 1e-4  # the standard deviation that t-SNE starts with

Places = npt.NDArray[np.float64]


class Layout(NamedTuple):
    """Places of vectors, [N, 2], the names of the axes, and what the places mean."""

    places: Places
    axes: tuple[str, str]
    meaning: str


def layout(vectors_ND: Floats) -> Layout:
    """Place the vectors; equal vectors give an equal map."""
    unit_ND = unit(vectors_ND)
    if len(unit_ND) >= MIN_NEIGHBORHOOD and (places_N2 := tsne(unit_ND)) is not None:
        said = "Vectors with a high cosine are near each other (t-SNE); distances between groups mean little."
        return Layout(places_N2, ("t-SNE 1", "t-SNE 2"), said)
    places_N2, share = project(unit_ND)
    said = (
        f"The two directions in which vectors differ most hold {share:.0%} of the differences; "
        "pip install 'graphmill[map]' gives a map that shows groups better."
    )
    return Layout(places_N2, ("first principal component", "second principal component"), said)


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
        perplexity=min(PERPLEXITY, (len(unit_ND) - 1) // 3),
        initialization=start_N2 / spread * FIRST_SPREAD,
        neighbors="exact",
        n_jobs=1,
        random_state=0,
    )
    places_N2: Places = np.asarray(method.fit(unit_ND), np.float64)
    return places_N2.round(3)


def project(vectors_ND: Floats) -> tuple[Places, float]:
    """Principal components: [N, 2], each with its largest value positive, and the share of the variance."""
    centred_ND = vectors_ND.astype(np.float64) - vectors_ND.mean(axis=0, dtype=np.float64)
    _, scale, axes = np.linalg.svd(centred_ND, full_matrices=False)
    place_N2 = centred_ND @ axes[:2].T
    sign = np.sign(place_N2[np.abs(place_N2).argmax(axis=0), [0, 1]])
    spread = float((scale**2).sum())
    rounded = np.round(place_N2 * np.where(sign == 0, 1, sign), 5)
    return rounded, float((scale[:2] ** 2).sum()) / spread if spread else 0.0
