"""Detectable differences and power by formula, against theory and a simulation of the test."""

import math

import numpy as np
import pytest
from fake_study import ARMS, TASKS, FakeStudy
from made_scores import made_scores
from paired_power import detectable_effect
from test_replicates import replicated_study

from biphasic.analysis.estimate import LEVEL
from biphasic.analysis.records import load_records
from biphasic.analysis.statistics.contrast import contrast_of, pooled
from biphasic.analysis.statistics.crossed import NO_EXAMPLES
from biphasic.analysis.statistics.paired import POWER
from biphasic.errors import ConfigError, DataError
from biphasic.records import (
    AgainstRecord,
    ArmRecord,
    AskedRecord,
    ForecastRecord,
    QuestionRecord,
    SupportRecord,
)
from biphasic.study.run.register import (
    Design,
    detectable_differences,
    pilot_spreads,
    powers,
    residual_spread,
    smallest_detectable,
)

PAIR = (1.0, -1.0)
RULES = SupportRecord(clear_for=1, clear_against=0), AgainstRecord(clear_against=1)


def detectable(*, weights=PAIR, num_arms=2, num_runs=5, num_comparisons=1, blocks=False, spread=1):
    return smallest_detectable(
        Design(weights, num_arms, num_runs, num_comparisons, blocks, float(spread))
    )


def test_a_pair_alone_agrees_with_the_noncentral_t_distribution():
    # The spread of a difference of two arms is sqrt(2) times that of one.
    assert detectable() == pytest.approx(math.sqrt(2) * detectable_effect(5), rel=0.05)
    assert detectable(spread=2.5) == pytest.approx(2.5 * detectable())


def test_pooled_arms_help_and_further_comparisons_cost():
    # The bound of a pooled test has a share of studies in which it does not decide.
    alone = detectable(num_runs=3, num_comparisons=4)
    assert detectable(num_runs=3, num_arms=5, blocks=True, num_comparisons=4) < alone
    with_blocks = detectable(num_runs=3, num_arms=5, blocks=True)
    assert detectable(num_runs=3, num_arms=5, blocks=True, num_comparisons=4) > with_blocks
    interaction = detectable(weights=(1, -1, -1, 1), num_arms=5, num_runs=3, blocks=True)
    assert interaction == pytest.approx(math.sqrt(2) * with_blocks, rel=0.1)


@pytest.mark.parametrize(
    ("design", "margin"),
    [
        (Design(PAIR, 2, 5, 1, are_blocks=False), 4.0),
        (Design(PAIR, 5, 3, 4, are_blocks=True, num_own=3), 6.0),
        (Design((1.0, -1.0, -1.0, 1.0), 8, 5, 4, are_blocks=True, num_own=4), 5.0),
    ],
)
def test_simulated_studies_find_the_detectable_difference_and_as_often_as_the_power_says(
    design, margin
):
    found = smallest_detectable(design)
    asked = AskedRecord(first=("a",), second=("b",), tasks=("d",), forecast=ForecastRecord(
        difference=found, interval=(0, 9)))  # fmt: skip
    power = powers(design, asked, margin)
    shares = {"power_of_forecast": simulated(design, found),
              "power_of_level": simulated(design, 0.0, margin)}  # fmt: skip
    assert shares["power_of_forecast"] >= POWER - 0.04
    for name, share in shares.items():
        assert power[name] == pytest.approx(share, abs=0.15), name


def simulated(design, difference, margin=None, num=400):
    """Return the share of normal studies whose difference is clear, or level."""
    draw, hits = np.random.default_rng(0), 0
    for _ in range(num):
        table = draw.normal(size=(design.num_arms, design.num_runs))
        values = np.array(design.weights) @ table[: len(design.weights)] + difference
        groups = {design.num_arms, design.num_own} if design.are_blocks else ()
        test = contrast_of(
            dict(enumerate(values)), NO_EXAMPLES, blocks=[pooled(table[:arms]) for arms in groups],
            squares=sum(weight**2 for weight in design.weights),
        )  # fmt: skip
        test = test if margin is None else test.within(margin)
        p = test.p_corrected(min(test.p_value * design.num_comparisons, 1.0))
        hits += p <= LEVEL and (margin is not None or test.mean > 0)
    return hits / num


def test_one_run_has_no_test():
    assert detectable(num_runs=1) is None


def test_a_comparison_without_a_test_needs_no_spread(tmp_path):
    folder, store = FakeStudy(steps=40, arms=ARMS[1:3], tasks=TASKS[:1], seeds=(0,)).write(tmp_path)
    study = load_records(folder, store).study
    one = AskedRecord(first=("mlm",), second=("clm",), tasks=("pydocs-sc",))
    asked = QuestionRecord(
        name="Q1", question="?", comparisons=(one,), supported_if=RULES[0], against_if=RULES[1]
    )

    def spread_on(task):
        raise DataError(f"{task}: one run")

    asking = study.model_copy(update={"questions": (asked,)})
    assert [*detectable_differences(asking, spread_on)] == []


def test_a_baseline_adds_no_spread_to_a_difference(tmp_path):
    folder, store = FakeStudy(steps=40, arms=ARMS[1:3], tasks=TASKS[:1]).write(tmp_path)
    study = load_records(folder, store).study
    floor = ("floor:majority",)
    sides = [(("mlm",), floor), (floor, ("mlm",)), (("mlm",), ("clm",))]
    comparisons = tuple(
        AskedRecord(first=first, second=second, tasks=("pydocs-sc",)) for first, second in sides
    )
    asked = QuestionRecord(
        name="Q1", question="?", comparisons=comparisons, supported_if=RULES[0], against_if=RULES[1]
    )
    asking = study.model_copy(update={"questions": (asked,)})
    one, other, pair = (found.points for found in detectable_differences(asking, lambda _: 1.0))
    alone = detectable(weights=(1.0,), num_comparisons=3)
    assert [one, other] == pytest.approx([alone, alone], rel=0.1)
    assert pair == pytest.approx(math.sqrt(2) * one, rel=0.1)


def test_the_spread_of_a_pilot_is_what_its_models_do_not_share():
    shared = np.array([0.0, 5.0, -3.0])
    scores = made_scores({"a": 50 + shared + [1, 0, -1], "b": 60 + shared - [1, 0, -1]})
    # Residuals of both: 1, 0, -1 and the opposite; their squares sum to 4, with 2 degrees.
    assert residual_spread(scores, "d") == pytest.approx(math.sqrt(2))
    with pytest.raises(DataError, match="two models with the same two runs"):
        residual_spread(made_scores({"a": [50.0, 51.0]}), "d")


def test_a_finished_encoder_is_paired_with_every_run(tmp_path):
    study = load_records(*replicated_study(tmp_path, seeds=(0,))).study
    theirs = ArmRecord(name="theirs", label="theirs", family="none", state="t", steps=0,
                       segments=(), is_finished_encoder=True)  # fmt: skip
    clm, mlm = (tuple(f"{name}-seed{seed}" for seed in (1, 2, 3)) for name in ("clm", "mlm"))
    pairs = (clm, mlm), (clm, ("theirs",)), (("theirs",), mlm)
    asked = [
        QuestionRecord(
            name="Q1", question="?", supported_if=RULES[0], against_if=RULES[1],
            comparisons=(AskedRecord(first=first, second=second, tasks=("pydocs-sc",)),),
        )
        for first, second in pairs
    ]  # fmt: skip
    asking = study.model_copy(update={"questions": tuple(asked), "arms": (*study.arms, theirs)})
    found = [one.points for one in detectable_differences(asking, lambda _: 1.0)]
    assert found == [detectable(num_arms=3, num_runs=3, blocks=True)] * 3


def test_no_variance_is_pooled_where_a_recipe_lacks_a_run(tmp_path):
    study = load_records(*replicated_study(tmp_path, seeds=(0,))).study
    two = [
        arm.model_copy(update={"name": f"other-{n}", "state": f"{n}", "model": "other"})
        for n, arm in enumerate(study.arms[:2])
    ]
    clm, mlm = (tuple(f"{name}-seed{seed}" for seed in (1, 2, 3)) for name in ("clm", "mlm"))
    asked = QuestionRecord(
        name="Q1", question="?", supported_if=RULES[0], against_if=RULES[1],
        comparisons=(AskedRecord(first=clm, second=mlm, tasks=("pydocs-sc",)),),
    )  # fmt: skip
    asking = study.model_copy(update={"questions": (asked,), "arms": (*study.arms, *two)})
    [found] = detectable_differences(asking, lambda _: 1.0)
    assert found.points == detectable(num_arms=2, num_runs=3, blocks=True)


def test_a_pilot_s_spreads_are_over_what_the_questions_are_over(tmp_path):
    over_runs, _ = replicated_study(tmp_path / "runs", seeds=(0,))
    over_seeds, _ = FakeStudy(steps=40, arms=ARMS[1:3], tasks=TASKS[:1]).write(tmp_path / "seeds")
    questions = []
    for first, second in ((("mlm",), ("clm",)), (("mlm-seed1", "mlm-seed2"), ("clm-seed1",))):
        one = AskedRecord(first=first, second=second, tasks=("pydocs-sc",))
        questions.append(QuestionRecord(
            name="Q1", question="?", comparisons=(one,),
            supported_if=RULES[0], against_if=RULES[1],
        ))  # fmt: skip
    study = load_records(over_seeds).study
    seeds, runs = (study.model_copy(update={"questions": (one,)}) for one in questions)
    assert pilot_spreads(over_runs, runs)("pydocs-sc") > 0
    assert pilot_spreads(over_seeds, seeds)("pydocs-sc") > 0
    with pytest.raises(
        ConfigError, match="over pretraining runs, but the questions are over seeds"
    ):
        pilot_spreads(over_runs, seeds)
    with pytest.raises(
        ConfigError, match="over seeds, but the questions are over pretraining runs"
    ):
        pilot_spreads(over_seeds, runs)
