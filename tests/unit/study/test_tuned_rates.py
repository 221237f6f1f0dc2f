"""Tuned peak rates: which arms they are for, and that states follow from them and names do not."""

from __future__ import annotations

from typing import Any

from biphasic.config import parse_config
from biphasic.study.plan.summary import StudyPlan, summarise_plan
from biphasic.study.resolve import resolve
from biphasic.study.settings.study import StudyConfig
from biphasic.study.settings.tuned_rates import ArmRate
from biphasic.study.study import Study
from biphasic.training.lineage import Lineage
from tiny_study import GROUND, clm, mlm, tiny_study

OWN = {"peak": 5e-4, "decay_steps": 2}
ARMS: list[dict[str, Any]] = [
    {"name": "untrained"},
    {"name": "mlm", "phases": [mlm(8)]},
    {"name": "mlm20", "phases": [mlm(8, mlm_probability=0.2)]},
    {"name": "clm", "phases": [clm(8)]},
    {"name": "clm-mlm", "phases": [clm(4), mlm(4)]},
    {"name": "adapted", "phases": [clm(8), mlm(8, learning_rate=OWN)]},
    {"name": "own-peak", "recipe": {"learning_rate": {"peak": 7e-4}}, "phases": [clm(8)]},
    {"name": "own-schedule", "phases": [clm(8, learning_rate=OWN)]},
    {"name": "own-warm-up", "recipe": {"learning_rate": {"warmup_steps": 4}}, "phases": [clm(8)]},
    {"name": "larger", "recipe": {"model": "nano"}, "phases": [clm(8)]},
]
RATES = [
    {"model": "pico", "phase": {"objective": "clm"}, "peak": 4e-3},
    {"model": "pico", "phase": {"objective": "mlm", "mlm_probability": 0.4}, "peak": 1e-3},
]


def study(**changes: Any) -> StudyConfig:
    schedule = {"peak": 2e-3, "warmup_steps": 2}
    return tiny_study(recipe={"learning_rate": schedule}, **{"arms": ARMS, **changes})


def peaks(config: StudyConfig) -> dict[str, list[float]]:
    return {
        arm.name: [placed.schedule.peak for placed in config.recipe_of(arm).placed_phases]
        for arm in config.arms
    }


def test_a_tuned_rate_is_for_the_arms_that_begin_with_its_model_and_objective():
    assert peaks(study(tuned_rates=RATES)) == {
        "untrained": [],
        "mlm": [1e-3],
        "mlm20": [2e-3],
        "clm": [4e-3],
        "clm-mlm": [4e-3, 4e-3],  # one schedule, so one peak
        "adapted": [4e-3, 5e-4],  # the schedule of its own stays
        "own-peak": [7e-4],
        "own-schedule": [5e-4],
        "own-warm-up": [4e-3],
        "larger": [2e-3],
    }


def test_a_tuned_rate_is_for_the_arms_with_its_optimizer():
    arms = [ARMS[3], {**ARMS[3], "name": "muon", "recipe": {"optimizer": {"name": "muon"}}}]
    muon = {**RATES[0], "optimizer": "muon", "peak": 9e-3}
    assert peaks(study(arms=arms, tuned_rates=RATES)) == {"clm": [4e-3], "muon": [2e-3]}
    assert peaks(study(arms=arms, tuned_rates=[*RATES, muon])) == {"clm": [4e-3], "muon": [9e-3]}


def test_a_rate_by_name_is_for_the_named_arms_and_precedes_one_by_objective():
    named = {"arms": ["clm-mlm", "mlm20", "own-peak"], "peak": 9e-3}
    config = study(tuned_rates=[*RATES, named])
    before = peaks(study(tuned_rates=RATES))
    assert peaks(config) == {**before, "mlm20": [9e-3], "clm-mlm": [9e-3, 9e-3]}
    assert {arm.name for arm in config.arms if config.tuned_rate_of(arm)} == {
        "mlm", "mlm20", "clm", "clm-mlm", "adapted", "own-warm-up",
    }  # fmt: skip
    [note] = config.rate_notes()
    assert note.startswith("tuned_rates.2 (peak 9e-3) is not used by arm 'own-peak'")


def test_a_rate_of_the_last_schedule_leaves_the_first_alone():
    arms = ["untrained", "adapted", "clm", "own-peak", "own-schedule"]
    last = {"arms": arms, "schedule": "last", "peak": 9e-3}
    before, after = (peaks(study(tuned_rates=rates)) for rates in (RATES, [*RATES, last]))
    # The others have no schedule after that of the recipe.
    assert after == {**before, "own-schedule": [9e-3], "adapted": [4e-3, 9e-3]}
    assert "schedule" not in ArmRate(arms=("mlm",), peak=1.0).model_dump()


def test_a_rate_that_no_arm_uses_is_noted():
    config = study(tuned_rates=[RATES[1], {"arms": ["mlm"], "peak": 9e-3}])
    [note] = config.rate_notes()
    assert note.startswith("tuned_rates.0 (peak 1e-3) is not used")


def test_plans_say_which_rates_are_tuned(tmp_path):
    config = study(tuned_rates=RATES)
    plan = resolve(Study(config, tmp_path), missing="placeholder").plan
    summary = summarise_plan(plan)
    printed = StudyPlan(plan, summary, 1e9, 9).lines()
    lines = {line.split()[0]: line for line in printed if line}
    assert lines["clm-mlm"].endswith("; peak 4e-3, tuned")
    assert lines["larger"].endswith("; peak 2e-3")


def test_only_arms_with_a_new_rate_are_trained_again():
    before, after = study(), study(tuned_rates=RATES)
    ends = [
        {arm.name: Lineage(config.recipe_of(arm), GROUND).identities[-1] for arm in config.arms}
        for config in (before, after)
    ]
    changed = {name for name in ends[0] if ends[0][name] != ends[1][name]}
    assert changed == {"mlm", "clm", "clm-mlm", "adapted", "own-warm-up"}


def test_the_state_is_that_of_an_arm_with_the_same_rate_by_hand():
    by_hand = {"name": "x", "recipe": {"learning_rate": {"peak": 4e-3}}, "phases": [clm(8)]}
    config = study(arms=[ARMS[3], by_hand], tuned_rates=RATES)
    first, second = (Lineage(config.recipe_of(arm), GROUND).identities for arm in config.arms)
    assert first == second


def test_names_by_rule_stay_as_they_were():
    template = {"phases": [clm(8)]}
    assert [arm.name for arm in study(arms=[template], tuned_rates=RATES).arms] == ["pico-clm-8"]


def test_objectives_of_several_parts_have_rates_too():
    mix = {
        "objective": "mix",
        "objectives": [{"objective": "clm"}, {"objective": "mlm"}],
        "shares": [0.5, 0.5],
    }
    rate = {"model": "pico", "phase": mix, "peak": 3e-3}
    config = study(
        arms=[{"name": "mix", "phases": [{**mix, "steps": 8}]}, ARMS[1]], tuned_rates=[rate]
    )
    assert peaks(config) == {"mix": [3e-3], "mlm": [2e-3]}


def test_a_dump_reads_back():
    config = study(tuned_rates=RATES)
    again = parse_config(StudyConfig, config.model_dump(mode="json"), where="dump")
    assert again.tuned_rates == config.tuned_rates
    assert peaks(again) == peaks(config)


def test_arms_that_begin_with_any_objective_may_stand_beside_tuned_rates():
    pairs = {"name": "pairs", "phases": [{"objective": "contrastive", "pairs": "p", "steps": 2}]}
    rate = {"model": "pico", "phase": {"objective": "clm"}, "peak": 3e-3}
    config = tiny_study({"name": "clm", "phases": [clm(2)]}, pairs, tuned_rates=[rate])
    peaks = [config.recipe_of(arm).learning_rate.peak for arm in config.arms]
    assert peaks == [3e-3, 1e-3]
