"""From the validation edges of a run to the probabilities of `graphmill predict --calibrated`."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from distributed import Client

from graphmill.ask.evaluate import calibrate, ranking
from graphmill.ask.evaluate import job as evaluate_job
from graphmill.ask.evaluate.calibrate import CalibrationAnswers
from graphmill.ask.evaluate.execution import Execution
from graphmill.ask.predict import job as predict_job
from graphmill.ask.predict.settings import PredictOptions
from graphmill.config.sections.evaluate import EvaluateConfig
from graphmill.errors import BadInputError, ConfigError, FormatError, NotFoundError
from graphmill.formats import calibration as files
from graphmill.model.calibration import NUM_BEST, probabilities, shares
from graphmill.vocab import Side
from tests.graphmill.ask.predict.world import World, write_world

SPLITS = ("train", "valid", "test")


def by_hand(world: World, split: str, *known: str) -> CalibrationAnswers:
    """The answers to the queries of a split, from all scores."""
    scores, true, groups = [], [], []
    for relation in sorted({rel for _, rel, _ in world.edges[split]}):
        for number, side in enumerate(Side):
            of_relation, true_pairs = world.scores(relation, side), world.pairs(relation, side, split)
            orders = world.orders(relation, side, world.pairs(relation, side, *known))
            for query in sorted({query for query, _ in true_pairs}):
                order = orders[query]
                row = np.full(NUM_BEST, -np.inf, np.float32)
                row[: len(order)] = of_relation[query][order]
                scores.append(row)
                places = [place for place, each in enumerate(order) if (query, each) in true_pairs]
                true.append(np.isin(np.arange(NUM_BEST), places))
                groups.append(2 * relation + number)
    return CalibrationAnswers(np.stack(scores), np.stack(true), np.array(groups))


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"num_partitions": 1, "dynamic": True, "operator": "complex_diagonal"},
        {"num_partitions": 3, "comparator": "l2", "reciprocal": True},
        {"num_partitions": 3, "evaluate": {"block_bytes": 1 << 10}, "loops": False},
    ],
)
def test_the_fit_is_that_of_all_scores(tmp_path: Path, settings: dict[str, Any]) -> None:
    world = write_world(tmp_path / "run", splits=SPLITS, **settings)
    expected = calibrate.fit(by_hand(world, "valid", "train"))
    found = calibrate.calibrate(world.config, Execution())
    assert found is not None
    content, figures = found
    assert content.temperature == pytest.approx(expected.temperature, rel=1e-3)
    assert content.pooled == pytest.approx(expected.pooled, rel=1e-2, abs=1e-3)
    names = [each.name for each in world.config.relations]
    names = ["likes", "sees", "buys"] if world.config.dynamic_relations else names
    for group, line in zip(expected.groups.tolist(), expected.lines.tolist(), strict=True):
        own = content.scale(names[group // 2], list(Side)[group % 2]).line
        assert own == pytest.approx(line, rel=1e-2, abs=1e-3)
    measured = calibrate.measure(expected, by_hand(world, "test", "train", "valid"))
    assert figures["num_queries"] == measured["num_queries"]
    for name in ("top_1", "top_10"):
        assert figures[name]["num_answers"] == measured[name]["num_answers"]
        for key in ("true", "brier"):
            assert figures[name][key] == pytest.approx(measured[name][key], abs=2e-3)


def test_a_gpu_calibrates_as_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: list[int]) -> None:
    expected = calibrate.calibrate(write_world(tmp_path / "one", splits=SPLITS).config, Execution())
    monkeypatch.setattr(ranking, "can_rank", lambda config, device: True)
    config = write_world(tmp_path / "two", splits=SPLITS, num_gpus=1).config
    found = calibrate.calibrate(config, Execution())
    assert expected is not None
    assert found is not None
    assert found[0].pooled == pytest.approx(expected[0].pooled, rel=1e-3)


def test_some_queries_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with the same chance, however many edges it has."""
    world = write_world(tmp_path / "run", splits=SPLITS)
    whole = calibrate.calibrate(world.config, Execution())
    monkeypatch.setattr(calibrate, "MOST_EDGES", 40)
    first, again = (calibrate.calibrate(world.config, Execution()) for _ in range(2))
    assert first is not None
    assert whole is not None
    assert first == again
    share = 40 / len(world.edges["test"])
    assert first[1]["num_queries"] == pytest.approx(share * whole[1]["num_queries"], rel=0.15)


def question(side: Side = Side.RHS) -> PredictOptions:
    return PredictOptions(relation="likes", side=side, k=4, exclude_known=True, calibrated=True)


@pytest.mark.slow
def test_answers_have_their_probabilities(tmp_path: Path, near_client: Client) -> None:
    world = write_world(tmp_path / "run", splits=SPLITS, num_partitions=3)
    figures = evaluate_job.run(world.config, near_client)
    assert figures["calibration"]["fitted_on"] == "valid"
    several = Execution(near_client, num_workers=2, folder_uri=str(tmp_path / "work"))
    assert calibrate.calibrate(world.config, several) == calibrate.calibrate(world.config, Execution())
    content = files.read(f"{world.config.output}/calibration.json", 1, None)
    for side in Side:
        temperature, line = content.scale("likes", side)
        asked, to = question(side), str(tmp_path / "out")
        predict_job.check(world.config, asked, to)
        predict_job.run(world.config, asked, to, near_client)
        table = pq.read_table(to).to_pydict()
        scores, kind = world.scores(0, side), world.types(0)[side.other]
        expected, orders = [], world.orders(0, side, world.pairs(0, side, *SPLITS))
        for query in range(len(scores)):
            best = scores[query][orders[query]]
            expected += probabilities(shares(best[None], temperature), *line)[0, :4].tolist()
        assert table["probability"] == pytest.approx(expected, rel=1e-3)
        assert table["id"] == [world.name(kind, query) for query in range(len(scores)) for _ in range(4)]
    assert json.loads((tmp_path / "out/_predict.json").read_text())["calibrated"] is True


def test_a_calibration_of_another_checkpoint_is_refused(tmp_path: Path, near_client: Client) -> None:
    world = write_world(tmp_path / "run", splits=SPLITS)
    config, to = world.config, str(tmp_path / "out")
    with pytest.raises(NotFoundError, match="there is no calibration; hold a split `valid` out"):
        predict_job.check(config, question(), to)
    evaluate_job.run(config, near_client)
    predict_job.check(config, question(), to)
    uri = f"{config.output}/{files.NAME}"
    files.write(uri, replace(files.read(uri, 1, None), checkpoint_version=2))
    with pytest.raises(FormatError, match=r"version 1, found that of the version 2; hold"):
        predict_job.check(config, question(), to)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    uri = str(tmp_path / files.NAME)
    line = files.Line(1.5, -0.25)
    content = files.Calibration(3, "abc", "valid", 0.5, line, {"likes": {Side.LHS: files.Line(0.0, 1.0)}})
    files.write(uri, content)
    assert files.read(uri, 3, "abc") == content
    assert content.scale("likes", Side.RHS).line == line
    text = Path(uri).read_text()
    for version, checksum in ((4, "abc"), (3, "abd"), (3, None)):
        with pytest.raises(FormatError, match="expected the calibration of the checkpoint's version"):
            files.read(uri, version, checksum)
    for wrong in (text.replace("1.5", "1.6"), "{}", "[]", text[:40], text.replace('"abc"', "null")):
        Path(uri).write_text(wrong)
        with pytest.raises(BadInputError, match=files.NAME):
            files.read(uri, 3, "abc")
    for temperature, *numbers in ((1, -1, 0), (1, float("nan"), 0), (1, 1, float("inf")), (0, 1, 0)):
        files.write(uri, files.Calibration(3, None, "valid", temperature, files.Line(*numbers), {}))
        with pytest.raises(FormatError, match="expected finite numbers and no negative slope"):
            files.read(uri, 3, None)


def test_there_may_be_nothing_to_calibrate_with(tmp_path: Path) -> None:
    world = write_world(tmp_path / "run", splits=SPLITS)
    # none, edges that are ranked themselves, edges that were trained on, and a folder that is not there
    for chosen in ({"calibrate": None}, {"split": "valid"}, {"calibrate": "train"}, {"calibrate": "nowhere"}):
        config = world.config.with_section(EvaluateConfig(**chosen))
        assert calibrate.calibrate(config, Execution()) is None
    with pytest.raises(ConfigError, match=r"evaluate.calibrate: there is no folder .*nowhere"):
        evaluate_job.check(world.config.with_section(EvaluateConfig(calibrate="nowhere")))
