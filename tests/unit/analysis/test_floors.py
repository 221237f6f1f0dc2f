"""Arms against floors."""

from __future__ import annotations

import pytest

from biphasic.analysis.estimate import estimate
from biphasic.analysis.scores.table import DatasetInfo, ModelInfo, Score, Scores
from biphasic.analysis.statistics.floors import floor_tests


def _scores(by_model: dict[str, list[float]], *, floors: tuple[str, ...]) -> Scores:
    models = {name: ModelInfo(name, name.upper(), objective="MLM") for name in by_model}
    models["untrained"] = ModelInfo("untrained", "UNTRAINED", objective="none")
    cells = {
        (name, "task"): Score(estimate(values, convention="standard"), dict(enumerate(values)))
        for name, values in by_model.items()
    }
    return Scores(
        "test", "standard",
        tuple(model for name, model in models.items() if name not in floors),
        (DatasetInfo("task", "SC", "accuracy"),), cells,
        baselines=tuple(ModelInfo(name, name) for name in floors),
    )  # fmt: skip


_ARMS = {
    "high": [80.0, 81.0, 80.5],
    "mid": [60.0, 61.0, 60.5],
    "low": [52.0, 52.5, 51.5],
    "untrained": [50.0, 50.2, 49.8],
}


def test_arms_are_above_all_floors_or_below_the_highest() -> None:
    floor = "floor:majority"
    tests = floor_tests(_scores({**_ARMS, floor: [70.0] * 3}, floors=(floor,)), "task")
    assert tests.above == ["high"]
    assert tests.floors == (floor, "untrained")
    assert tests.note("high", "mid") == ""
    assert tests.note("mid", "low") == f"below {floor}: not evidence of what pretraining adds"
    assert floor in tests.sentence("task")
    assert "HIGH is clearly above" in tests.sentence("task")


def test_without_floors_nothing_is_said() -> None:
    arms = {name: values for name, values in _ARMS.items() if name != "untrained"}
    tests = floor_tests(_scores(arms, floors=()), "task")
    assert tests.note("mid", "low") == ""
    assert tests.sentence("task") == ""


@pytest.mark.parametrize("value", [60.4, 58.0])
def test_an_arm_near_a_floor_is_not_clearly_above(value: float) -> None:
    floor = "floor:dictionary"
    arms = {**_ARMS, "mid": [value, 62.0, 60.0], floor: [60.2] * 3}
    tests = floor_tests(_scores(arms, floors=(floor,)), "task")
    assert tests.not_above["mid"] == (floor,)
    assert "floor:dictionary: not evidence" in tests.note("mid", "low")
