"""Figures from a study's records: learning rates, and losses of continued training."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from fake_study import ARMS, TASKS, FakeStudy

from biphasic.analysis.curves import Curve
from biphasic.analysis.figures.catalog import score_figures
from biphasic.analysis.figures.chart import Chart, Skipped
from biphasic.analysis.figures.draw import draw
from biphasic.analysis.figures.runs import (
    continued_losses,
    rates_of_arms,
    run_figures,
    scores_by_learning_rate,
    study_losses,
)
from biphasic.analysis.page.content import rate_rows
from biphasic.analysis.records import load_records
from biphasic.analysis.scores.source import study_scores
from biphasic.analysis.scores.table import DatasetInfo, Score
from biphasic.analysis.words import interval_note


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return load_records(*FakeStudy(steps=40).write(tmp_path_factory.mktemp("study")))


def rows(chart, label=None, panel=0):
    """Return the points of a panel, or of one of its series."""
    points = chart.points[chart.points["panel"] == chart.panels[panel].key]
    return points if label is None else points[points["series"] == label]


def continued(records, *names, steps=30):
    """Return records in which some arms went on after ten steps."""
    arms = tuple(
        replace(
            arm,
            record=arm.record.model_copy(update={"continued_steps": steps, "continues": "CLM"}),
        )
        if arm.name in names else arm
        for arm in records.arms
    )  # fmt: skip
    return replace(records, arms=arms)


def test_each_rate_has_the_mean_of_all_its_seeds(records):
    chart = scores_by_learning_rate(study_scores(records))
    task = records.tasks[0]
    results = records.results_of(records.by_cell["mlm", task.name])
    for point in rows(chart, "MLM").itertuples():
        scores = [100 * one.test[task.metric] for one in results if one.learning_rate == point.x]
        assert len(scores) == 5
        mean = sum(scores) / 5
        assert point.mean == pytest.approx(mean)
        deviation = math.sqrt(sum((score - mean) ** 2 for score in scores) / 4)
        # Student's t with four degrees of freedom.
        assert point.high - mean == pytest.approx(2.776445 * deviation / math.sqrt(5), rel=1e-6)
    wider = next(rows(chart).itertuples())
    narrow = next(rows(scores_by_learning_rate(study_scores(records, "paper"))).itertuples())
    assert (narrow.high - narrow.mean) / (wider.high - wider.mean) == pytest.approx(1.96 / 2.776445)


def test_the_untrained_encoder_is_no_line_and_diverged_runs_are_counted(tmp_path):
    lost = {("mlm", "pydocs-sc", 5e-4, seed) for seed in (0, 1)} | {("clm", "pydocs-sc", 2e-4, 3)}
    study = FakeStudy(steps=40, diverged=lost)
    records = load_records(*study.write(tmp_path))
    chart, _ = run_figures(study_scores(records), records)
    assert {*chart.points["series"]} == {label for name, label, *_ in ARMS if name != "untrained"}
    assert "1 run at 2e-4 and 2 runs at 5e-4" in chart.caption


def test_every_arm_has_its_range_over_seeds_in_the_report(records):
    chart = rates_of_arms(records)
    task = records.tasks[0]
    assert chart.panels[0].title == task.title
    assert [*rows(chart)["series"].unique()] == [label for _, label, *_ in ARMS]
    results = records.results_of(records.by_cell["untrained", task.name])
    point = next(rows(chart).itertuples())
    scores = [100 * one.test[task.metric] for one in results if one.learning_rate == point.x]
    assert (point.low, point.high) == (min(scores), max(scores))
    assert point.mean == pytest.approx(sum(scores) / 5)


def test_many_arms_are_distinguished_by_objective_only(tmp_path):
    arms = tuple(
        (f"a{i}", f"A {i}", family, ((family.lower(), 1.0),), 0.01 * i)
        for i, family in enumerate(["MLM", "CLM"] * 4)
    )
    study = FakeStudy(steps=40, arms=arms, seeds=(0, 1), learning_rates=(1e-4, 2e-4))
    records = load_records(*study.write(tmp_path))
    chart = scores_by_learning_rate(study_scores(records))
    lines = rows(chart).drop_duplicates("line")
    assert [*lines["series"]] == ["MLM", "CLM"] * 4
    assert lines["style"].nunique() == 2
    assert "each line is one of 8 models" in chart.caption
    assert chart.points["low"].isna().all()
    # Of several optimizers, a label and a mark tell which.
    scores = study_scores(records)
    models = tuple(
        replace(model, optimizer="muon" if index > 3 else "adamw")
        for index, model in enumerate(scores.models)
    )
    lines = rows(scores_by_learning_rate(replace(scores, models=models))).drop_duplicates("line")
    expected = ["MLM, adamw", "CLM, adamw"] * 2 + ["MLM, muon", "CLM, muon"] * 2
    assert [*lines["series"]] == expected
    assert lines["style"].nunique() == 4


def test_one_rate_or_no_run_is_a_reason(tmp_path, records):
    study = FakeStudy(steps=40, learning_rates=(1e-4,))
    one_rate = load_records(*study.write(tmp_path / "one"))
    scores = study_scores(one_rate)
    # A zero-shot task has no rate, and is recorded at 0.
    zero = DatasetInfo("zero", "ZS", "ndcg_at_10")
    at_zero = {(one.name, "zero"): Score(None, by_rate={0.0: [50.0]}) for one in scores.models}
    more = replace(scores, datasets=(*scores.datasets, zero), cells={**scores.cells, **at_zero})
    for found in (
        scores_by_learning_rate(scores), scores_by_learning_rate(more), rates_of_arms(one_rate),
    ):  # fmt: skip
        assert isinstance(found, Skipped)
        assert "two learning rates" in found.reason
    found = scores_by_learning_rate(study_scores(replace(records, runs=())))
    assert isinstance(found, Skipped)
    assert "has finished" in found.reason
    found = scores_by_learning_rate(replace(scores, datasets=(zero,), cells=at_zero))
    assert isinstance(found, Skipped)
    assert "no task is fine-tuned" in found.reason


@pytest.mark.parametrize("rates", [(1e-4,), (1e-4, 2e-4)])
def test_a_probe_on_few_labels_has_seeds_and_no_rate(tmp_path, rates):
    study = FakeStudy(steps=40, tasks=TASKS[:2], learning_rates=rates, seeds=(0, 1))
    records = load_records(*study.write(tmp_path))
    tuned, probed = (task.name for task in records.tasks)

    def at_no_rate(one):
        of_probe = one.task == probed and one.learning_rate == 1e-4
        return one.model_copy(update={"learning_rate": 0.0}) if of_probe else one

    runs = [run for run in records.runs if (run.task, run.learning_rate) != (probed, 2e-4)]
    results = {at_no_rate(run): at_no_rate(records.results[run]) for run in runs}
    records = replace(records, runs=tuple(map(at_no_rate, runs)), results=results)
    chart = rates_of_arms(records)
    if len(rates) == 1:
        assert isinstance(chart, Skipped)
    else:
        assert {*chart.points["panel"]} == {tuned}
        assert {*chart.points["x"]} == {*rates}
        assert draw(chart)
    for _, (of_tuned, of_probe) in rate_rows(records):
        assert of_tuned
        assert of_probe == []


def test_losses_begin_where_the_finished_model_ended(records):
    chart = continued_losses(continued(records, "mlm", steps=30))
    by_panel = dict([*chart.points.groupby("panel")])
    assert {panel.key for panel in chart.panels} == {*by_panel} == {"training-mlm", "heldout-mlm"}
    arm = next(arm for arm in records.arms if arm.name == "mlm")
    curve = arm.losses["training", "mlm"]
    expected = {
        int(step) - 10: loss for step, loss in zip(curve.steps, curve.losses, strict=True)
        if step > 10
    }  # fmt: skip
    points = by_panel["training-mlm"]
    assert dict(zip(points["x"], points["mean"], strict=True)) == pytest.approx(expected)
    assert by_panel["heldout-mlm"]["x"].min() >= 0


def test_long_curves_are_means_of_neighbours(records):
    steps = np.arange(1, 1001)
    curve = Curve(steps, steps * 100, 10.0 - steps / 1000, np.zeros(1000, dtype=np.int64))
    arm = replace(records.arms[1], losses={("training", "mlm"): curve})
    arm = replace(arm, record=arm.record.model_copy(update={"continued_steps": 600, "steps": 1000}))
    points = [*rows(continued_losses(replace(records, arms=(arm,)))).itertuples()]
    # 600 steps in 120 groups of five: the first is of steps 1 to 5 after the finished model.
    assert len(points) == 120
    assert points[0].x == 3.0
    assert points[0].mean == pytest.approx(10.0 - 403 / 1000)


def test_lines_of_a_panel_are_means_over_as_many_steps(records):
    def trained(arm, num_steps):
        steps = np.arange(1, num_steps + 1)
        losses = 10.0 - steps / 1000
        curve = Curve(steps, steps * 100, losses, np.zeros(num_steps, dtype=np.int64))
        return replace(arm, losses={("training", "mlm"): curve})

    arms = (trained(records.arms[1], 360), trained(records.arms[2], 160))
    points = rows(study_losses(replace(records, arms=arms)))
    lines = [of[["x", "mean"]].to_numpy() for _, of in points.groupby("line", sort=False)]
    assert [*map(len, lines)] == [120, 53]
    for line in lines:
        gaps = np.diff(line[:, 0])
        assert gaps.max() <= 4 * 100
        assert gaps.min() >= 3 * 100
    # Training that both share looks the same, but for the end of the shorter line.
    assert (lines[0][:52] == lines[1][:52]).all()


def test_a_panel_has_the_unit_of_its_losses(records):
    [mlm] = (arm for arm in records.arms if arm.name == "mlm")
    curve = mlm.losses["training", "mlm"]
    own = replace(mlm, losses={(kind, "focal"): curve for kind in ("training", "heldout")})
    bits = own.state.model_copy(update={"loss_units": {"focal": "bits"}})
    other = replace(own, state=bits)
    cases = (([mlm], "nats per token"), ([own], ""), ([other], "bits"), ([own, other], ""))
    for arms, unit in cases:
        panels = study_losses(replace(records, arms=tuple(arms))).panels
        assert {panel.unit for panel in panels} == {unit}


def test_without_continued_training_the_figure_is_left_out(records):
    found = {each.name: each for each in run_figures(study_scores(records), records)}
    assert isinstance(found["learning-rate"], Chart)
    assert "no finished model was continued" in found["continued-losses"].reason
    bare = continued(records, "mlm")
    arms = tuple(replace(arm, losses={}) for arm in bare.arms)
    assert "logged" in continued_losses(replace(bare, arms=arms)).reason


def test_scores_over_training_examples_are_of_one_task(tmp_path):
    sizes = {"few-64": 64, "few-16": 16, "few-256": 256, "one-16": 16, "other-8": 80}
    tasks = tuple((name, "sc", name, "accuracy", 0.5) for name in sizes)
    folder, store = FakeStudy(steps=40, tasks=tasks, learning_rates=(1e-4,)).write(tmp_path)
    study = json.loads((folder / "study.json").read_text())
    for task in study["tasks"]:
        task["num_train"] = sizes[task["name"]]
    (folder / "study.json").write_text(json.dumps(study))
    scores = study_scores(load_records(folder, store))
    chart = {each.name: each for each in score_figures(scores)}["train-examples"]
    [panel] = chart.panels
    assert panel.title == "few"
    assert interval_note(scores) in chart.caption
    assert [*rows(chart)["series"].unique()] == [label for _, label, *_ in ARMS]
    for point in chart.points.itertuples():
        expected = scores.get(point.model, f"few-{point.x:.0f}").estimate
        assert (point.mean, point.low, point.high) == (expected.mean, *expected.ends)
    assert [text for _, text in chart.axis.ticks] == ["16", "64", "256"]
    few = replace(scores, datasets=scores.datasets[3:])
    assert "train-examples" not in {each.name for each in score_figures(few)}


def test_a_line_that_rises_a_little_and_falls_again_stays_in_its_panel(records):
    losses = {"mlm": [5.0, 5.05, 4.9], "clm": [5.0, 9.0, 4.8]}
    arms = tuple(
        replace(arm, losses={("heldout", "mlm"): Curve(steps, steps, np.array(losses[arm.name]),
                                                       0 * steps)})
        for arm in records.arms
        if arm.name in losses
        for steps in [np.array([10, 20, 30])]
    )  # fmt: skip
    [panel] = study_losses(replace(records, arms=arms)).panels
    assert panel.top == pytest.approx(5.1)  # 9.0 is cut
