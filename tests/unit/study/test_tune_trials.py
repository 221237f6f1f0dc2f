"""What of a study has a rate of its own, and the trials that are trained for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from biphasic import tune
from biphasic.errors import ConfigError
from biphasic.study.settings.load import load_study
from biphasic.study.settings.study import StudyConfig
from biphasic.study.tune.search import first_rates
from biphasic.study.tune.trials import differing_arms, plan_lines, plan_tuning, trial_study
from tiny_study import plan_of, tiny_study

STUDIES = Path(__file__).parents[3] / "studies"
CLM = {"objective": "clm"}
MLM = {"objective": "mlm"}
MIX = {"objective": "mix", "objectives": [CLM, MLM], "shares": [0.25, 0.75]}
TURNS = {"objective": "alternate", "every": 1, "objectives": [CLM, MLM, CLM, MIX]}
OWN = {"peak": 5e-4, "decay_steps": 2}


def arm(name: str, *phases: dict[str, Any], **settings: Any) -> dict[str, Any]:
    return {"name": name, "phases": list(phases), **settings}


def study(*arms: dict[str, Any], **changes: Any) -> StudyConfig:
    schedule = {"peak": 2e-3, "warmup_steps": 20, "decay_steps": 30}
    recipe = {"rows_per_step": 4, "learning_rate": schedule, **changes.pop("recipe", {})}
    return tiny_study(*arms, recipe=recipe, **changes)


FULL = {"steps": 200}
MIXED = study(
    arm("untrained"),
    arm("mlm", MLM | FULL),
    arm("clm", CLM | FULL),
    arm("clm-mlm", CLM | {"steps": 80}, MLM | {"steps": 120}),
    arm("adapted", CLM | FULL, MLM | {"steps": 900, "learning_rate": OWN}),
    arm("mlm20", MLM | FULL | {"mlm_probability": 0.2}),
    arm("nano", CLM | FULL, recipe={"model": "nano"}),
    arm("own", CLM | FULL, recipe={"learning_rate": {"peak": 1e-3}}),
    arm("mntp", {"objective": "mntp"} | FULL),
    arm("mix", MIX | FULL),
    arm("turns", TURNS | FULL),
    arm("seed", CLM | FULL, recipe={"seeds": {"init_seed": 1}}),
    arm("rows", CLM | FULL, recipe={"rows_per_step": 8}),
)


def test_each_model_with_each_first_objective_has_a_rate_and_the_others_are_named():
    tuning = plan_tuning(MIXED, 0.1)
    assert {each.name: [arm.name for arm in each.arms] for each in tuning.groups} == {
        "pico-mlm40": ["mlm"],
        "pico-clm": ["clm", "clm-mlm", "adapted", "seed", "rows"],
        "pico-mlm20": ["mlm20"],
        "nano-clm": ["nano"],
        "pico-mix.25.clm.75.mlm40": ["mix"],
        "pico-alt1.clm.mlm40.clm.mix.25.clm.75.mlm40": ["turns"],
    }
    assert tuning.untuned == {
        "untrained": "it is not trained",
        "own": "it sets recipe.learning_rate.peak itself",
        "mntp": "its first objective has no held-out loss",
    }
    assert tuning.later_schedules == ("adapted",)
    assert differing_arms(tuning.groups[1]) == ["rows"]
    [group] = plan_tuning(
        study(arm("clm", CLM | FULL), arm("long", CLM | {"steps": 300, "max_seqlen": 32})), 0.1
    ).groups
    assert differing_arms(group) == ["long"]
    assert first_rates(tuning, None)["nano-clm"] == (5e-4, 1e-3, 2e-3, 4e-3, 8e-3)


def test_diffusion_is_tuned_by_its_bound_alone_or_in_a_mix():
    diffusion = {"objective": "diffusion"}
    parts = [diffusion, {"objective": "clm"}]
    mix = {"objective": "mix", "objectives": parts, "shares": [0.5, 0.5]}
    tuning = plan_tuning(study(arm("alone", diffusion | FULL), arm("mix", mix | FULL)), 0.1)
    alone, mixed = tuning.groups
    assert (alone.weights, alone.measure) == ({"diffusion": 1}, "diffusion loss")
    assert mixed.measure == "0.5 x CLM + 0.5 x diffusion loss"


def test_each_optimizer_has_trials_of_its_own():
    muon = {"optimizer": {"name": "muon"}}
    config = study(arm("clm", CLM | FULL), arm("muon", CLM | FULL, recipe=muon))
    tuning = plan_tuning(config, 0.1)
    assert [each.name for each in tuning.groups] == ["pico-clm", "pico-clm-muon"]
    assert [each.tuned(1e-3, trials=5).optimizer for each in tuning.groups] == ["adamw", "muon"]
    trials = trial_study(tuning, {each.name: [1e-3] for each in tuning.groups})
    optimizers = [trials.recipe_of(trial).optimizer.name for trial in trials.arms]
    assert optimizers == ["adamw", "muon"]


def test_objectives_of_several_parts_are_judged_by_the_losses_of_their_parts():
    weights = {each.name: each.weights for each in plan_tuning(MIXED, 0.1).groups}
    assert weights["pico-mlm20"] == {"mlm": 1}
    assert weights["pico-mix.25.clm.75.mlm40"] == {"clm": 0.25, "mlm": 0.75}
    # Two turns of four are CLM, one MLM, one the mixture.
    (turns,) = (found for name, found in weights.items() if "alt1" in name)
    assert turns == pytest.approx({"clm": 0.5 + 0.25 / 4, "mlm": 0.25 + 0.75 / 4})


def test_trials_are_runs_in_miniature():
    tuning = plan_tuning(MIXED, 0.1)
    # The longest schedule that a rate is for has 200 steps: the 900 have one of their own.
    assert (tuning.budget, tuning.steps) == (200, 20)
    names = [each.name for each in tuning.groups]
    config = trial_study(tuning, dict.fromkeys(names, (1e-3, 2e-3)))
    assert config.name == "s-tune"
    assert config.tasks == ()
    assert [arm.name for arm in config.arms[:3]] == [
        "pico-mlm40-lr0.001",
        "pico-mlm40-lr0.002",
        "pico-clm-lr0.001",
    ]
    for trial in config.arms:
        recipe = config.recipe_of(trial)
        schedule = recipe.learning_rate
        assert (recipe.total_steps, schedule.warmup_steps, schedule.decay_steps) == (20, 2, 3)
        assert f"lr{schedule.peak:g}" in trial.name
        assert len(recipe.phases) == 1


def test_trials_skip_no_step():
    """A step that is not finite at one rate may be finite at another, and trials are shorter."""
    own = arm("mlm", MLM | FULL, recipe={"skip_steps": [150]})
    tuning = plan_tuning(study(own, arm("clm", CLM | FULL), recipe={"skip_steps": [3]}), 0.1)
    trials = trial_study(tuning, {each.name: [1e-3] for each in tuning.groups})
    assert [trials.recipe_of(each).skip_steps for each in trials.arms] == [(), ()]


def test_each_arm_has_a_rate_and_replicates_share_one():
    replicates = [
        arm(f"both-{seed}", CLM | {"steps": 80}, MLM | {"steps": 120}, recipe={"seed": seed})
        for seed in (3, 4)
    ]
    arms = [
        arm("clm", CLM | FULL),
        *replicates,
        arm("mntp", CLM | FULL, {"objective": "mntp"} | FULL),
    ]
    tuning = plan_tuning(study(*arms), 0.1, by="arm")
    assert {each.name: [arm.name for arm in each.arms] for each in tuning.groups} == {
        "clm": ["clm"],
        "both-3": ["both-3", "both-4"],
    }
    assert [each.tuned(1e-3, trials=5).arms for each in tuning.groups] == [
        ("clm",),
        ("both-3", "both-4"),
    ]
    # The last objective decides.
    assert [each.weights for each in tuning.groups] == [{"clm": 1}, {"mlm": 1}]
    assert "its last objective has no held-out loss" in tuning.untuned["mntp"]
    lines = list(plan_lines(tuning, {each.name: [1e-3] for each in tuning.groups}, Path("none")))
    assert "    for both-3 and both-4; trials have the seeds of 'both-3'" in lines
    trials = trial_study(tuning, {each.name: [1e-3] for each in tuning.groups})
    assert [trials.recipe_of(each).seeds.init_seed for each in trials.arms] == [0, 3]


def test_trials_of_arms_have_all_phases_in_proportion():
    adapted = arm(
        "adapted", CLM | FULL, MLM | {"steps": 50, "learning_rate": OWN | {"decay_steps": 20}}
    )
    short = arm("short", CLM | {"steps": 55}, MLM | {"steps": 70, "learning_rate_scale": 0.5})
    tuning = plan_tuning(study(adapted, short), 0.1, by="arm")
    assert (tuning.budget, tuning.steps) == (250, 25)
    trials = trial_study(tuning, {each.name: [1e-3, 4e-3] for each in tuning.groups})
    phases = {each.name: [(p.objective, p.steps) for p in each.phases] for each in trials.arms}
    assert phases["adapted-lr0.001"] == phases["adapted-lr0.004"] == [("clm", 20), ("mlm", 5)]
    assert phases["short-lr0.001"] == [("clm", 6), ("mlm", 6)]  # together a tenth of 125, rounded
    placed = [trials.recipe_of(each).placed_phases for each in trials.arms]
    schedules = [[(p.schedule.peak, p.schedule.warmup_steps, p.schedule.decay_steps) for p in of]
                 for of in placed]  # fmt: skip
    assert schedules[1] == [(4e-3, 2, 3), (5e-4, 0, 2)]  # the peak of its own is not tuned
    assert trials.arms[2].phases[1].learning_rate_scale == 0.5


def test_a_trial_of_a_whole_arm_ends_in_the_state_of_the_arm():
    """Trials as long as the arm at the chosen rate are trained once, and arms share trunks."""
    arms = [arm("clm", CLM | FULL), arm("both", CLM | {"steps": 80}, MLM | {"steps": 120})]
    config = study(*arms)
    tuning = plan_tuning(config, 1.0, by="arm")
    trials = trial_study(tuning, {each.name: [4e-3] for each in tuning.groups})
    rates = [each.tuned(4e-3, trials=5).model_dump() for each in tuning.groups]
    tuned = study(*arms, tuned_rates=rates)
    plans = [plan_of(each) for each in (trials, tuned)]
    states = [[each.state for each in plan.arms] for plan in plans]
    assert states[0] == states[1]
    assert len(plans[1].segments) == 3  # the first 80 steps are shared


def test_earlier_choices_change_no_trial():
    rate = {"model": "pico", "phase": CLM, "peak": 7e-3}
    arms = [arm("clm", CLM | FULL)]
    plain, tuned = (study(*arms, tuned_rates=rates) for rates in ([], [rate]))
    tunings = [plan_tuning(config, 0.1) for config in (plain, tuned)]
    studies = [trial_study(each, {"pico-clm": (1e-3,)}) for each in tunings]
    assert studies[0] == studies[1]


def test_models_and_objectives_with_one_name_get_distinct_names():
    rates = ({"mlm_probability": 0.400001}, {"mlm_probability": 0.400002})
    config = study(*(arm(f"a{n}", MLM | FULL | rate) for n, rate in enumerate(rates)))
    names = [each.name for each in plan_tuning(config, 0.1).groups]
    assert names == ["pico-mlm40", "pico-mlm40-2"]


@pytest.mark.parametrize("share", [0, -0.1, 1.01, float("nan")])
def test_a_share_is_a_share(share):
    with pytest.raises(ConfigError, match="--share: expected a share in"):
        plan_tuning(MIXED, share)


@pytest.mark.parametrize(
    ("rates", "problem"),
    [
        ([], "expected positive numbers"),
        ([1e-3, -1e-3], r"expected positive numbers .*got '\[0.001, -0.001\]'"),
        ([1e-3, 1e-3], "lists a rate twice"),
    ],
)
def test_rates_are_checked_without_the_command_line(tmp_path, rates, problem):
    with pytest.raises(ConfigError, match=f"--rates: {problem}"):
        tune(STUDIES / "smoke.yaml", rates=rates, root=tmp_path / "root")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "rates", [(1e-3, 1e6), (1e-3, 1.0000001e-3)], ids=["no name", "print alike"]
)
def test_rates_that_cannot_name_their_trials_are_refused(tmp_path, rates):
    with pytest.raises(ConfigError, match="--rates: "):
        tune(STUDIES / "smoke.yaml", rates=rates, root=tmp_path / "root", extend=False)


def test_a_study_without_a_rate_to_tune_is_refused():
    config = study(arm("untrained"), arm("own", CLM | FULL | {"learning_rate": OWN}))
    with pytest.raises(ConfigError, match=r"no arm .*'own': its first phase sets"):
        plan_tuning(config, 0.1)


def test_a_name_without_room_is_refused():
    config = study(arm("clm", CLM | FULL), name="n" * 76)
    with pytest.raises(ConfigError, match="shorten this one to 75"):
        plan_tuning(config, 0.1)


def test_trials_too_short_for_their_objective_are_refused_with_the_remedy():
    config = study(arm("turns", {**TURNS, "every": 50} | FULL))
    tuning = plan_tuning(config, 0.1)
    with pytest.raises(ConfigError, match="give a larger --share"):
        trial_study(tuning, {tuning.groups[0].name: (1e-3,)})


def test_the_reference_study_has_a_rate_for_each_size_objective_and_masking_rate(tmp_path):
    tuning = plan_tuning(load_study(STUDIES / "paper.yaml"), 0.1)
    sizes, objectives = ("210m", "610m", "1b"), ("mlm20", "mlm30", "mlm40", "mlm50", "clm")
    names = {each.name for each in tuning.groups}
    assert names == {f"{size}-{objective}" for size in sizes for objective in objectives}
    assert (tuning.budget, tuning.steps) == (42_000, 4_200)
    lines = list(plan_lines(tuning, dict.fromkeys(names, (5e-4,)), tmp_path))
    assert lines[0] == (
        "paper-tune: 15 trials of 4,200 steps (10 % of 42,000), 200 of them warm-up and 200 decay"
    )
    assert any(
        "not tuned: later phases that set learning_rate themselves" in line for line in lines
    )
    assert any(line.startswith("in all 63,000 steps, 149 G tokens") for line in lines)
    assert not list(tmp_path.iterdir())
