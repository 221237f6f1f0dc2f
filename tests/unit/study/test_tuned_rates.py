"""Tuned peak rates: which arms they are for, and that states follow from them and names do not."""

from __future__ import annotations

from typing import Any

from biphasic.study.settings.study import StudyConfig
from biphasic.study.settings.tuned_rates import ArmRate
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


def test_a_rate_by_name_that_an_arm_does_not_use_is_noted():
    named = {"arms": ["clm-mlm", "mlm20", "own-peak"], "peak": 9e-3}
    config = study(tuned_rates=[*RATES, named])
    assert {arm.name for arm in config.arms if config.tuned_rate_of(arm)} == {
        "mlm", "mlm20", "clm", "clm-mlm", "adapted", "own-warm-up",
    }  # fmt: skip
    [note] = config.rate_notes()
    assert note.startswith("tuned_rates.2 (peak 9e-3) is not used by arm 'own-peak'")


def test_a_rate_of_the_first_schedule_is_written_as_before():
    assert "schedule" not in ArmRate(arms=("mlm",), peak=1.0).model_dump()


def test_a_rate_that_no_arm_uses_is_noted():
    config = study(tuned_rates=[RATES[1], {"arms": ["mlm"], "peak": 9e-3}])
    [note] = config.rate_notes()
    assert note.startswith("tuned_rates.0 (peak 1e-3) is not used")


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
