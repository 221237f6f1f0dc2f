"""Arms with axes: every combination, budgets that add up, names by rule, mistakes named."""

from __future__ import annotations

import pytest

from biphasic.errors import ConfigError
from biphasic.study.settings.study import StudyConfig
from tiny_study import clm, mlm, tiny_study


def study(*arms: dict, **recipe: object) -> StudyConfig:
    return tiny_study(*arms, recipe={"model": "610m", "learning_rate": AGAIN, **recipe})


def names(*arms: dict, **recipe: object) -> list[str]:
    return [arm.name for arm in study(*arms, **recipe).arms]


CLM, MLM = {"objective": "clm"}, {"objective": "mlm", "mlm_probability": 0.4}
AGAIN = {"peak": 1e-3, "decay_steps": 2}


def test_an_optimizer_is_an_axis():
    arm = {"phases": [clm(9)], "axes": {"recipe.optimizer.name": ["adamw", "muon"]}}
    shared = {"optimizer": {"name": "muon", "beta2": 0.98}}
    assert names(arm, **shared) == ["610m-clm-9-adamw", "610m-clm-9"]
    found = study(arm, **shared)
    recipes = [each.recipe_from(found.recipe) for each in found.arms]
    assert [(each.optimizer.name, each.optimizer.beta2) for each in recipes] == [
        ("adamw", 0.98),
        ("muon", 0.98),
    ]


def test_every_combination_of_axes_is_an_arm():
    arm = {
        "steps": 40,
        "phases": [{**CLM, "share": 0.5}, MLM],
        "axes": {
            "recipe.model": ["pico", "nano"],
            "recipe.learning_rate.peak": [1e-3, 2e-3],
            "recipe.seeds.init_seed": [0, 1],
            "steps": [20, 40],
            "phases.0.share": [0, 0.25, 1],
            "phases.1.mlm_probability": [0.3, 0.4],
        },
    }
    found = study(arm).arms
    # Where all is CLM, the masking rate multiplies nothing.
    assert len({each.name for each in found}) == len(found) == 2 * 2 * 2 * 2 * (2 * 2 + 1)
    assert {sum(phase.steps for phase in each.phases) for each in found} == {20, 40}
    assert {len(each.phases) for each in found} == {1, 2}


def test_an_axis_changes_one_arm_and_one_place_only():
    schedules = [{"peak": 1e-3}, {"peak": 2e-3}]
    warm = {"recipe.learning_rate": schedules, "recipe.learning_rate.warmup_steps": [1, 2]}
    arms = study({"phases": [clm(9)], "axes": warm}).arms
    rates = [arm.recipe["learning_rate"] for arm in arms]
    assert rates == [{**each, "warmup_steps": steps} for each in schedules for steps in (1, 2)]
    phase = mlm(4)  # in both places, as by an alias in YAML
    [arm] = study({"phases": [phase, phase], "axes": {"phases.1.mlm_probability": [0.2]}}).arms
    assert [phase.mlm_probability for phase in arm.phases] == [0.4, 0.2]


def test_a_budget_is_spent_in_shares_and_a_phase_without_steps_is_dropped():
    arm = {"steps": 20, "phases": [CLM, MLM], "axes": {"phases.0.steps": [0, 5, 20]}}
    found = study(arm).arms
    assert [[(p.objective, p.steps) for p in each.phases] for each in found] == [
        [("mlm", 20)],
        [("clm", 5), ("mlm", 15)],
        [("clm", 20)],
    ]


def test_arms_change_single_settings_of_the_recipe():
    config = study(
        {"name": "a", "recipe": {"learning_rate": {"peak": 5e-3}}, "phases": [clm(9)]},
        {"name": "b", "recipe": {"model": "pico", "rows_per_step": 2}},
    )
    first, second = map(config.recipe_of, config.arms)
    assert (first.learning_rate.peak, first.learning_rate.decay_steps) == (5e-3, 2)
    assert (first.model, first.rows_per_step) == ("610m", 8)
    assert (second.model, second.rows_per_step, second.learning_rate.peak) == ("pico", 2, 1e-3)


def test_many_arms_are_refused_before_they_are_looked_at():
    many = [{"name": "a", "nonsense": 1}] * 10_001
    with pytest.raises(ConfigError, match=r"arms: 10,001 arms, .* 10,000"):
        study(*many)
    axes = {f"recipe.seeds.{name}_seed": [*range(101)] for name in ("init", "data")}
    with pytest.raises(ConfigError, match=r"arms\.0: axes: 10,201 arms, .* split the study"):
        study({"axes": axes})
    axes["recipe.seeds.data_seed"] = [*range(50)]
    with pytest.raises(ConfigError, match=r"arms\.0 to arms\.1: 10,100 arms"):
        study({"axes": axes}, {"axes": axes})
