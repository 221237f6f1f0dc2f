"""Peak rates tuned in miniature: from a study file to the rates that it includes."""

import csv
import io
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import biphasic
from biphasic.study.resolve import resolve
from biphasic.study.settings.load import load_study
from biphasic.study.study import Study
from biphasic.study.tune.search import TuneOutcome
from mini_study import states
from warm import forking

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unrendered", "unprobed")]

TEXT = """\
# Tuned in a test.
name: mini
title: Miniature   # with a comment
corpus: {libraries: [rich, typer, click], vocab_size: 512}
recipe:
  model: pico
  max_seqlen: 64
  rows_per_step: 4
  learning_rate: {peak: 2.0e-3, warmup_steps: 2, decay_steps: 2}
# What is compared.
arms:
  - {name: untrained}
  - {name: mlm, phases: [{objective: mlm, steps: 12}]}
  - {name: clm-mlm, phases: [{objective: clm, steps: 4}, {objective: mlm, steps: 8}]}
"""
HOPELESS = 1e3


@dataclass(frozen=True)
class Tuned:
    """A study file that was tuned at three rates, and the root of its runs."""

    file: Path
    root: Path
    outcome: TuneOutcome


def tune(file: Path, root: Path, *rates: float, **options: Any) -> TuneOutcome:
    with forking():
        tuned = biphasic.tune(
            file, root=root, rates=rates, share=0.5, workers=1, quiet=True, **options
        )
    assert tuned.outcome is not None
    return tuned.outcome


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    """Tuned once for all tests, which copy what they change."""
    folder = tmp_path_factory.mktemp("tuned")
    file, root = folder / "mini.yaml", folder / "runs"
    file.write_text(TEXT)
    made = Tuned(file, root, tune(file, root, 1e-3, 4e-3, HOPELESS))
    file.write_text(f"include: mini.rates.yaml\n{TEXT}")
    return made


@pytest.fixture
def copied(tuned: Tuned, tmp_path: Path) -> Tuned:
    """A copy to change."""
    file, root = tmp_path / "mini.yaml", tmp_path / "runs"
    shutil.copy(tuned.file, file)
    shutil.copy(tuned.outcome.file, tmp_path)
    shutil.copytree(tuned.root, root)
    return Tuned(file, root, tuned.outcome)


def recorded(root: Path) -> dict[str, dict[float, float]]:
    """Return by objective and rate what the trials' states say, without the code under test."""
    study = json.loads((root / "mini-tune/study.json").read_text())
    losses: dict[str, dict[float, float]] = {"clm": {}, "mlm": {}}
    for arm in study["arms"]:
        path = root / "store/states" / arm["state"] / "state.json"
        if path.is_file():
            objective = "mlm" if "mlm" in arm["name"] else "clm"
            rate = float(arm["name"].partition("-lr")[2])
            losses[objective][rate] = json.loads(path.read_text())["heldout"][objective]
    return losses


def test_the_rate_with_the_lowest_recorded_loss_is_written(tuned):
    losses = recorded(tuned.root)
    assert {name: set(found) for name, found in losses.items()} == {
        "clm": {1e-3, 4e-3},
        "mlm": {1e-3, 4e-3},
    }
    best = {name: min(found, key=found.__getitem__) for name, found in losses.items()}
    config = load_study(tuned.file)
    peaks = {arm.name: config.recipe_of(arm).learning_rate.peak for arm in config.arms}
    assert peaks == {"untrained": 2e-3, "mlm": best["mlm"], "clm-mlm": best["clm"]}
    plan = resolve(Study(config, tuned.root), missing="placeholder").plan
    assert [arm.recipe.learning_rate.peak for arm in plan.arms] == list(peaks.values())


def test_the_rates_are_in_a_file_of_their_own(tuned):
    assert tuned.outcome.file == tuned.file.with_name("mini.rates.yaml")
    assert "runs/mini-tune/curve.csv" in tuned.outcome.file.read_text()
    assert tuned.outcome.advice.endswith(f"add to {tuned.file}: include: mini.rates.yaml")


def test_the_curve_has_every_trial_and_names_the_diverged_ones(tuned):
    folder = tuned.root / "mini-tune"
    rows = list(csv.DictReader(io.StringIO((folder / "curve.csv").read_text())))
    losses = recorded(tuned.root)
    for row in rows:
        objective = "mlm" if "mlm" in row["name"] else "clm"
        rate = float(row["peak"])
        if rate == HOPELESS:
            assert row["loss"] == ""
            assert "was not finite at step" in row["lost"]
        else:
            assert float(row["loss"]) == losses[objective][rate]
    assert len(rows) == 6
    record = json.loads((folder / "curve.json").read_text())
    assert (record["steps"], record["budget"]) == (6, 12)
    assert record["untuned"] == {"untrained": "it is not trained"}
    assert (folder / "curve.png").stat().st_size > 1000
    assert (folder / "curve.svg").read_text().startswith("<?xml")


def test_a_second_call_runs_nothing_and_changes_nothing(copied):
    again = tune(copied.file, copied.root, 1e-3, 4e-3, HOPELESS)
    assert again.num_executed == 0
    assert again.advice == ""
    assert again.record == copied.outcome.record


def test_a_changed_list_runs_new_trials_and_extends_beyond_its_edge(copied):
    before = {state.name for state in states(copied.root)}
    outcome = tune(copied.file, copied.root, 1e-3, 4e-3)
    after = {state.name for state in states(copied.root)}
    tried = {curve.name: [t.peak for t in curve.trials] for curve in outcome.record.curves}
    assert len({len(rates) for rates in tried.values()}) == 1
    new = sum(len(rates) - 2 for rates in tried.values())
    lost = sum(trial.loss is None for curve in outcome.record.curves for trial in curve.trials)
    assert outcome.num_executed == len(after - before) == new - lost
    for curve in outcome.record.curves:
        losses = {t.peak: t.loss for t in curve.trials if t.loss is not None}
        assert curve.choice == min(losses, key=losses.__getitem__)
        rates = sorted(tried[curve.name])
        # 4e-3 was the better of the two, and rungs are a factor of four apart.
        assert rates == [1e-3, 4e-3, 1.6e-2, 6.4e-2, 0.256][: len(rates)]
        is_inside = rates[0] < curve.choice < rates[-1]
        assert is_inside == (curve.edge == "")
        assert is_inside or len(rates) == 5


def test_each_arm_gets_the_rate_with_the_lowest_loss_of_its_last_objective(copied):
    outcome = tune(copied.file, copied.root, 1e-3, 4e-3, by="arm", extend=False)
    study = json.loads((copied.root / "mini-tune/study.json").read_text())
    losses: dict[str, dict[float, float]] = {"mlm": {}, "clm-mlm": {}}
    for arm in study["arms"]:
        state = copied.root / "store/states" / arm["state"] / "state.json"
        name, _, rate = arm["name"].partition("-lr")
        losses[name][float(rate)] = json.loads(state.read_text())["heldout"]["mlm"]
    # The trials of MLM are those of its first objective, which were trained before.
    assert outcome.num_executed == 2
    config = load_study(copied.file)
    peaks = {arm.name: config.recipe_of(arm).learning_rate.peak for arm in config.arms}
    best = {name: min(found, key=found.__getitem__) for name, found in losses.items()}
    assert peaks == {"untrained": 2e-3, **best}
    assert [rate.arms for rate in config.tuned_rates] == [("mlm",), ("clm-mlm",)]


def test_a_dry_run_prints_the_plan_and_trains_nothing(copied, cli):
    before = sorted(copied.root.rglob("*"))
    text = copied.file.read_text()
    code, out, err = cli(
        "study", "tune", copied.file, "--root", copied.root, "--share", "0.5", "--dry-run",
        "--rates", "1e-3,4e-3",
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert "mini-tune: 4 trials of 6 steps (50 % of 12)" in out
    assert "done   4 of 4 trials" in out
    assert sorted(copied.root.rglob("*")) == before
    assert copied.file.read_text() == text


def test_the_command_prints_losses_and_what_to_include(copied, cli):
    copied.file.write_text(TEXT)
    code, out, _ = cli(
        "study", "tune", copied.file, "--root", copied.root, "--share", "0.5", "--no-extend",
        "--rates", "1e-3,4e-3", "--workers", "1", "--out", copied.file.with_name("tuned.yaml"),
    )  # fmt: skip
    assert code == 0
    assert out.count("<- chosen") == 2
    assert "the chosen rate is the highest one tried" in out
    assert f"add to {copied.file}: include: tuned.yaml" in out
    assert copied.file.read_text() == TEXT
    assert "tuned_rates:" in copied.file.with_name("tuned.yaml").read_text()
