"""Names, segments and peak rates of the studies in `plans.yaml`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from biphasic.config import parse_config
from biphasic.study.plan.summary import StudyPlan, summarise_plan
from biphasic.study.resolve import resolve
from biphasic.study.settings.study import StudyConfig
from biphasic.study.study import Study
from tiny_study import GROUND, plan_of, tiny_study

CASES = yaml.safe_load(Path(__file__).with_name("plans.yaml").read_text("utf-8"))


KEYS = {
    *StudyConfig.model_fields,
    "segments",
    "groups",
    "peaks",
    "has",
    "lacks",
    "seeds",
    "compared",
}
assert CASES.keys() == {"names", "segments", "peaks", "prints", "seeds", "compared"}


def every(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("title", "case"), CASES[kind].items(), ids=CASES[kind])


def spelled_out(arm: Any) -> dict[str, Any]:
    """Return the settings of an arm whose phases may be written as `clm 4`."""
    settings = {"phases": arm} if isinstance(arm, list) else dict(arm)
    phases = settings.get("phases", [])
    words = [phase.split() if isinstance(phase, str) else phase for phase in phases]
    named = [{"objective": w[0], "steps": int(w[1])} if isinstance(w, list) else w for w in words]
    return {**settings, "phases": named} if "phases" in settings else settings


def study(case: dict[str, Any], **changes: Any) -> StudyConfig:
    assert case.keys() <= KEYS
    arms = case["arms"]
    if isinstance(arms, dict):
        arms = [{"name": name, **spelled_out(arm)} for name, arm in arms.items()]
    given = {name: case[name] for name in StudyConfig.model_fields if name in case}
    if "compare" in given:
        given["compare"] = [{"arms": case["compare"]}]
    return tiny_study(**{**changes, **given, "arms": [spelled_out(arm) for arm in arms]})


@every("names")
def test_names_follow_a_rule(title, case):
    recipe = {"model": "610m", "learning_rate": {"peak": 1e-3, "decay_steps": 2}}
    assert [arm.name for arm in tiny_study(spelled_out(case), recipe=recipe).arms] == (
        title.split(", ")
    )


@every("segments")
def test_each_step_is_trained_once(title, case, locate):
    config = study(case, tasks=[{"name": "pydocs-sc"}], finetuning={"learning_rates": [1e-4]})
    plan = plan_of(config, GROUND, locate(config))
    labels = {segment.id: segment.label for segment in plan.segments}
    lines = [" > ".join((*filter(None, [labels.get(s.parent)]), s.label)) for s in plan.segments]
    assert lines == case["segments"]
    if "groups" in case:
        assert [group.label for group in plan.groups] == case["groups"]


@every("peaks")
def test_tuned_rates_are_for_their_arms(title, case):
    config = study(case, recipe={"learning_rate": {"peak": 2e-3, "warmup_steps": 2}})
    for read in (config, parse_config(StudyConfig, config.model_dump(mode="json"), where="dump")):
        assert case["peaks"] == {
            arm.name: [placed.schedule.peak for placed in read.recipe_of(arm).placed_phases]
            for arm in read.arms
        }


@every("prints")
def test_plans_say(title, case, tmp_path):
    config = study(case, recipe={"learning_rate": {"peak": 2e-3, "warmup_steps": 2}}, tasks=[])
    plan = resolve(Study(config, tmp_path), missing="placeholder").plan
    text = str(StudyPlan(plan, summarise_plan(plan), 1e12, 64))
    assert [part for part in case["has"] if part not in text] == []
    assert [part for part in case.get("lacks", ()) if part in text] == []


@every("seeds")
def test_runs_have_seeds(title, case):
    config = study(case)
    seeds = [config.recipe_of(arm).seeds for arm in config.arms]
    assert [[s.init_seed, s.data_seed, s.mask_seed] for s in seeds] == case["seeds"]


@every("compared")
def test_arms_are_compared_with_all_runs_of_their_recipes(title, case):
    assert study(case).compared() == [tuple(map(tuple, case["compared"]))]
