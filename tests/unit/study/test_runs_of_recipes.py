"""Pretraining runs of recipes: their seeds, those of their fine-tunings, planned comparisons."""

from __future__ import annotations

from pathlib import Path

import pytest

from biphasic.errors import ConfigError
from biphasic.model.loading.hub import LocalModel
from biphasic.study.settings.study import FinetuningConfig
from biphasic.training.recipe import Seeds
from tiny_study import GROUND, clm, mlm, plan_of, tiny_study

RUNS = {"recipe.seed": [0, 3]}


def study(**changes):
    arms = [{"phases": [clm(8)], "axes": RUNS}, {"phases": [mlm(8)], "axes": RUNS}]
    return tiny_study(*arms, **changes)


def test_a_run_has_fine_tuning_seeds_of_its_own():
    def seeds_of(run, **changes):
        return FinetuningConfig(**changes).seeds_of(run)

    assert seeds_of(Seeds()) == (0, 1, 2, 3, 4)
    third = Seeds(init_seed=3, data_seed=3, mask_seed=3)
    assert seeds_of(third, seeds=2) == (3000, 3001)
    # Seeds that differ are hashed; the same ones again are the same run.
    mixed = [seeds_of(Seeds(init_seed=seed), seeds=2) for seed in (1, 2, 1)]
    assert mixed[0] == mixed[2]
    assert len({*mixed[0], *mixed[1], *seeds_of(third)}) == 2 + 2 + 5
    assert seeds_of(third, seeds=[4, 7]) == (4, 7)


@pytest.mark.parametrize(
    ("seeds", "expected"),
    [(2, {(0, 1), (3000, 3001)}), ([0, 1], {(0, 1)})],
    ids=["own", "shared"],
)
def test_fine_tunings_are_planned_with_the_seeds_of_their_run(locate, seeds, expected):
    config = study(
        tasks=[{"name": "pydocs-sc"}], finetuning={"seeds": seeds, "learning_rates": [1e-4]}
    )
    plan = plan_of(config, GROUND, locate(config))
    assert {tuple(seed for _, seed in group.grid) for group in plan.groups} == expected


def test_finished_encoders_and_baselines_are_paired_with_every_run():
    pairs = ["pico-clm-8", "theirs"], ["pico-clm-8", "floor:dictionary"], ["untrained", "theirs"]
    config = tiny_study(
        {"name": "untrained"},
        {"phases": [clm(8)], "axes": RUNS},
        {"name": "theirs", "encoder": {"pretrained": "bert"}},
        tasks=[{"name": "pydocs-sc"}],
        compare=[{"arms": pair} for pair in pairs],
    )
    assert [len(first) for first, _ in config.compared()] == [2, 2, 1]


def test_a_finished_encoder_has_the_fine_tuning_seeds_of_all_runs(locate):
    theirs = {"name": "theirs", "encoder": {"pretrained": "bert"}}
    config = tiny_study(
        {"phases": [clm(8)], "axes": RUNS},
        theirs,
        tasks=[{"name": "pydocs-sc"}],
        finetuning={"seeds": 2, "learning_rates": [1e-4]},
    )
    model = LocalModel(Path("bert"), "theirs", None)
    plan = plan_of(config, GROUND, locate(config), encoders={"theirs": model})
    grids = {group.state: [seed for _, seed in group.grid] for group in plan.groups}
    assert grids["theirs"] == [0, 1, 3000, 3001]


def test_results_of_listed_seeds_keep_their_identities(locate):
    def runs(seeds):
        config = tiny_study(
            {"name": "a", "phases": [clm(8)]},
            tasks=[{"name": "pydocs-sc"}],
            finetuning={"seeds": seeds, "learning_rates": [1e-4]},
        )
        plan = plan_of(config, GROUND, locate(config))
        return [identity for group in plan.groups for identity in group.run_ids()]

    # A study with one run of each recipe is the same with a number, with a list and by default.
    assert runs(5) == runs([0, 1, 2, 3, 4])
    assert len({*runs(5)}) == 5


CLM = ("pico-clm-8", "pico-clm-8-seed3")
MLM = ("pico-mlm40-8", "pico-mlm40-8-seed3")


ASKED = {"arms": ["pico-clm-8", "pico-mlm40-8"], "tasks": ["pydocs-sc"]}


def asking(comparison, **changes):
    asked = {"name": "Q1", "question": "Is CLM better?", "comparisons": [comparison], **changes}
    return study(questions=[asked], tasks=[{"name": "pydocs-sc"}])


def test_questions_compare_runs_and_differences_of_differences():
    [[found]] = asking({**ASKED, "minus": ["pico-mlm40-8", "pico-clm-8"]}).asked()
    assert (found.arms, found.minus) == ((CLM, MLM), (MLM, CLM))
    rule = asking(ASKED).questions[0].counts_against_if
    assert (rule.clear_against, rule.clear_for) == (1, 0)


def difference(text):
    """Return (a - b) - (c - d) from `ab-cd`, or a - b from `ab`."""
    first, *minus = (tuple(pair) for pair in text.split("-"))
    return {"arms": first, "minus": minus[0] if minus else None}


@pytest.mark.parametrize(
    ("first", "second"),
    [("ac", "ab-cb"), ("ab", "ba"), ("ab-cd", "ac-bd"), ("ab-cd", "cd-ab"), ("ab", "ab-ba")],
)
def test_the_same_difference_written_otherwise_is_refused(first, second):
    def ask(*texts):
        comparisons = [difference(text) for text in texts]
        asked = {"name": "Q1", "question": "Is it better?", "comparisons": comparisons}
        arms = [
            {"name": name, "phases": [clm(steps)]}
            for name, steps in zip("abcd", (4, 8, 12, 16), strict=True)
        ]
        return tiny_study(*arms, questions=[asked], tasks=[{"name": "pydocs-sc"}])

    assert ask(first).questions
    assert ask(first, "ad", "ab-dc").questions  # other differences of the same arms
    with pytest.raises(ConfigError, match=r"comparisons\.1: .*comparisons\.0,"):
        ask(first, second)
