"""The map: planted groups are apart, with t-SNE and with principal components."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from graphmill.ask.nearest import Floats
from graphmill.report.layout import MIN_VECTORS, kept_layout, layout, project


def planted(rng: np.random.Generator, num_groups: int, size: int = 40) -> tuple[Floats, np.ndarray]:
    """Vectors in groups of which each has a direction of its own, and the groups' numbers."""
    centres_GD = np.linalg.qr(rng.normal(size=(32, 32)))[0][:num_groups]
    group_N = np.repeat(np.arange(num_groups), size)
    vectors_ND = (centres_GD[group_N] + 0.1 * rng.normal(size=(len(group_N), 32))).astype(np.float32)
    return vectors_ND * rng.uniform(0.1, 9, (len(group_N), 1)).astype(np.float32), group_N


def silhouette(places_N2: np.ndarray, group_N: np.ndarray) -> float:
    from sklearn.metrics import silhouette_score

    return float(silhouette_score(places_N2, group_N))


@pytest.mark.slow
def test_groups_are_apart_on_the_map(rng: np.random.Generator) -> None:
    pytest.importorskip("openTSNE", reason="needs openTSNE: pip install 'graphmill[map]'")
    vectors_ND, group_N = planted(rng, 6, 170)
    found = layout(vectors_ND)
    assert found.axes == ("t-SNE 1", "t-SNE 2")
    assert silhouette(found.places, group_N) > 0.6
    assert silhouette(found.places, rng.permutation(group_N)) < 0.1
    assert np.array_equal(layout(vectors_ND).places, found.places)


def test_without_the_extra_the_map_is_of_principal_components(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openTSNE", None)  # as if it were not installed
    vectors_ND, group_N = planted(rng, 3)
    found = layout(vectors_ND)
    assert "principal component" in found.axes[0]
    assert "pip install 'graphmill[map]'" in found.meaning
    assert silhouette(found.places, group_N) > 0.6
    assert np.array_equal(layout(vectors_ND).places, found.places)


def test_few_vectors_are_no_reason_to_install_what_is_there(rng: np.random.Generator) -> None:
    pytest.importorskip("openTSNE", reason="needs openTSNE: pip install 'graphmill[map]'")
    found = layout(planted(rng, 3, MIN_VECTORS // 3 - 1)[0])
    assert "principal component" in found.axes[0]
    assert "pip install" not in found.meaning


@pytest.mark.parametrize("count", [3, MIN_VECTORS - 1, MIN_VECTORS])
def test_few_or_equal_vectors_have_a_map(count: int) -> None:
    found = layout(np.ones((count, 4), np.float32))
    assert found.places.shape == (count, 2)
    assert np.isfinite(found.places).all()
    assert np.isfinite(layout(np.zeros((count, 2), np.float32)).places).all()


def test_the_map_shows_the_principal_components(rng: np.random.Generator) -> None:
    axes = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    spread = np.array([9.0, 4.0, 1.0, 0.5, 0.1, 0.1])
    vectors = (rng.normal(size=(4000, 6)) * spread) @ axes.T + 3
    place, share = project(vectors.astype(np.float32))
    np.testing.assert_allclose(place.std(axis=0), spread[:2], rtol=0.05)
    np.testing.assert_allclose(share, (81 + 16) / (spread**2).sum(), rtol=0.02)
    assert (place[np.abs(place).argmax(axis=0), [0, 1]] > 0).all()


def test_places_are_kept_until_the_vectors_change(tmp_path: Path, rng: np.random.Generator) -> None:
    vectors_ND, _ = planted(rng, 3, 10)
    file = tmp_path / "results" / "map-32.json"
    first = kept_layout(str(file), vectors_ND)
    assert np.array_equal(first.places, layout(vectors_ND).places)
    content = json.loads(file.read_text())
    content["places"][0] = [7, 8]
    file.write_text(json.dumps(content))
    kept = kept_layout(str(file), vectors_ND)
    assert kept.places[0].tolist() == [7, 8]
    assert (kept.axes, kept.meaning) == (first.axes, first.meaning)
    moved = kept_layout(str(file), vectors_ND[::-1])
    assert np.array_equal(moved.places, layout(vectors_ND[::-1]).places)
    assert np.array_equal(kept_layout(str(file), vectors_ND).places, first.places)


@pytest.mark.parametrize(
    "change",
    [
        lambda _: "{",
        lambda _: "[]",
        lambda content: json.dumps({**content, "places": content["places"][:-1]}),
        lambda content: json.dumps({**content, "places": "x"}),
        lambda content: json.dumps({**content, "places": [[float("nan"), 1]] * len(content["places"])}),
        lambda content: json.dumps({**content, "axes": ["one"]}),
        lambda content: json.dumps({"of": content["of"]}),
    ],
)
def test_what_is_no_layout_is_made_anew(tmp_path: Path, rng: np.random.Generator, change) -> None:
    vectors_ND, _ = planted(rng, 2, 5)
    file = tmp_path / "map-32.json"
    first = kept_layout(str(file), vectors_ND)
    content = json.loads(file.read_text())
    file.write_text(change(content))
    assert np.array_equal(kept_layout(str(file), vectors_ND).places, first.places)
    assert json.loads(file.read_text()) == content


def test_a_map_that_cannot_be_kept_is_a_map(tmp_path: Path, rng: np.random.Generator) -> None:
    vectors_ND, _ = planted(rng, 2, 5)
    (tmp_path / "results").write_text("a file")
    kept = kept_layout(str(tmp_path / "results" / "map-32.json"), vectors_ND)
    assert np.array_equal(kept.places, layout(vectors_ND).places)
