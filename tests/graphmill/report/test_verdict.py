"""The sentence that says whether a ranking is good."""

import json
from typing import Any

import pytest

from graphmill import storage
from graphmill.cli import session
from graphmill.report.charts import Chart
from graphmill.report.page import PageTable
from graphmill.report.results import ranking
from graphmill.report.stages import loss_note
from graphmill.run import record
from graphmill.run.reading import evaluate, verdict
from tests.train.graphs import make_config


def entry(mrr: float, num_edges: int = 88, **more: Any) -> dict[str, Any]:
    return {"split": "test", "filtered": True, "metrics": {"mrr": mrr, "num_edges": num_edges}} | more


SIMPLE = {"baselines": {"most_popular": {"mrr": 0.1}, "random": {"mrr": 0.01}}}
LEVELS = {"Good": "good", "Fair": "warning", "Bad": "error"}
BY_MRR = {
    0.4: "Good: the MRR of 0.4 is 4 times that of the most popular, and 40 times that of chance.",
    0.12: "Fair: the MRR of 0.12 is little more than that of the most popular (0.1).",
    0.1: "Bad: with an MRR of 0.1, the most popular candidates (0.1) do better.",
    0.011: "Bad: the MRR of 0.011 is that of chance (0.01).",
}
ABOUT = "Fair: on the edges that neighbors rank, the MRR of {} is about theirs (0.1 ± {}), without training."
BY_MRR_OF_VECTORS = {  # the first is less than half above the most popular, but learned
    0.12: "Good: the MRR of 0.13 is 1.2 times that of neighbors, 1.3 times that of the most popular, and "
    "13 times that of chance.",
    **{own: ABOUT.format(own, 0.002) for own in (0.101, 0.099)},
    0.09: "Bad: on the edges that neighbors rank, the MRR of 0.09 is below theirs (0.1), without training.",
}


def test_the_verdict_compares_with_simple_rankings_and_with_neighbors_on_the_same_edges() -> None:
    verdicts = [(entry(mrr, **SIMPLE), text) for mrr, text in BY_MRR.items()]
    for own, text in BY_MRR_OF_VECTORS.items():
        near = {"mrr": 0.1, "mrr_vectors": own, "num_edges": 20}
        verdicts.append((entry(0.13, baselines=SIMPLE["baselines"] | {"neighbors": near}), text))
    few = {"mrr": 0.1, "mrr_vectors": 0.11, "num_edges": 20, "margin": 0.015}  # of the difference, by chance
    verdicts.append(
        (entry(0.13, baselines=SIMPLE["baselines"] | {"neighbors": few}), ABOUT.format(0.11, 0.015))
    )
    for evaluated, text in verdicts:
        found = verdict(evaluated, {})
        assert (found.level, found.text) == (LEVELS[text.partition(":")[0]], text)


def test_a_ranking_without_wrong_answers_or_of_few_edges_tells_nothing() -> None:
    simple = {name: {"mrr": 1.0} for name in ("most_popular", "random", "neighbors")}
    found = verdict(entry(1.0, baselines=simple), {})
    assert (found.level, "tells nothing: chance itself has 1," in found.text) == ("plain", True)
    found = [verdict(entry(0.4, num_edges, **SIMPLE), {}) for num_edges in (1, 24, 25)]
    assert ["tells nothing: fewer than 25 edges" in each.text for each in found] == [True, True, False]


@pytest.mark.parametrize("bounds", [0.1, [], [0.1], [0.1, 0.2, 0.3], ["low", "high"], {"low": 1, "high": 2}])
def test_an_interval_has_two_numbers(bounds: Any) -> None:
    assert dict(evaluate(entry(0.4, intervals={"mrr": [0.1, 0.5]})))["mrr"] == "0.4 (95 %: 0.1 to 0.5)"
    wrong = entry(0.4, mrr_pessimistic=0.3, intervals={"mrr": bounds})
    assert dict(evaluate(wrong))["mrr"] == "0.4"
    tables = [each for each in ranking(wrong, {}) if isinstance(each, PageTable)]
    assert not any("95 % interval" in each.columns for each in tables)


@pytest.mark.parametrize(("mrr", "is_beaten"), [(0.04, True), (0.05, False)])
def test_a_relation_that_is_as_good_as_the_most_popular_is_not_beaten(mrr: float, is_beaten: bool) -> None:
    side = {"num_edges": 9, "mrr": mrr, "mrr_most_popular": 0.05}
    relations = [{"relation": name, "lhs": side, "rhs": side} for name in "rs"]
    blocks = ranking(entry(0.4, metrics_by_relation=relations), {})
    notes = [block.note for block in blocks if isinstance(block, Chart)]
    assert any("the most popular candidates do better in r, s." in note for note in notes) == is_beaten


@pytest.mark.parametrize(
    ("before", "text"),
    [
        (entry(0.39), "The run before was worse, with 0.39."),
        (entry(0.41), "The run before was better, with 0.41."),
        (entry(0.401), "The run before had about the same, 0.401."),
        (entry(0.3, split="valid"), "The run before had 0.3, but ranked other edges."),
    ],
)
def test_the_verdict_compares_with_the_run_before(before: dict[str, Any], text: str) -> None:
    assert verdict(entry(0.4, **SIMPLE), before).text.endswith(f". {text}")
    assert "evaluate again" in verdict(entry(0.4), before).text  # without baselines there is no judgement
    assert verdict({"metrics": {"mrr": None}}, before).level == "warning"


@pytest.mark.parametrize("status", ["done", "left out"])
def test_commands_say_the_verdict_in_a_line(tmp_path, capsys, status):
    content = {"stages": {"evaluate": entry(0.1, status=status, **SIMPLE)}, "before": entry(0.5)}
    storage.write_text(uri := f"{tmp_path}/run.json", json.dumps(content))
    session.tell_verdict(record.RunRecord(uri, make_config(tmp_path)))
    said = capsys.readouterr().out
    text = verdict(content["stages"]["evaluate"], entry(0.5)).text
    assert said == (f"{text}\n" if status == "done" else "")


@pytest.mark.parametrize(
    ("losses", "word"),
    [([3, 2, 1], "still falling"), ([3, 1.01, 1], "levelled off"), ([1, 2], "rose"), ([3, 1, 2], "before")],
)
def test_the_losses_of_the_epochs_are_judged(losses: list[float], word: str) -> None:
    assert word in loss_note([{"epoch": epoch, "loss": loss} for epoch, loss in enumerate(losses, start=1)])
