import math

import pytest
from fake_study import ARMS, TASKS, FakeStudy

from biphasic.analysis.estimate import Estimate, estimate
from biphasic.analysis.records import load_records
from biphasic.analysis.scores.source import study_scores
from biphasic.analysis.tables.markup import make_sheets, to_markdown
from biphasic.analysis.tables.results import format_table
from biphasic.analysis.tables.text import comparison_lines
from biphasic.shown import table_lines


def test_paper_interval_is_1_96_standard_errors():
    # Mean of 1, 2, 3, 4, 5 is 3; squares 4+1+0+1+4 = 10; 10 / 4 = 2.5; 1.96 * sqrt(2.5 / 5).
    found = estimate([1, 2, 3, 4, 5], convention="paper")
    assert found == Estimate(3.0, pytest.approx(1.96 * math.sqrt(0.5), rel=1e-15), 5)


@pytest.mark.parametrize(
    ("scores", "half_width"),
    [
        # t(0.975; 4) = 2.7764451051977987, standard error sqrt(2.5 / 5) as above.
        ([1, 2, 3, 4, 5], 2.7764451051977987 * math.sqrt(0.5)),
        # t(0.975; 1) = 12.706204736432095; s = sqrt(0.02) for 0.6 and 0.8; s / sqrt(2) = 0.1.
        ([0.6, 0.8], 1.2706204736432095),
    ],
)
def test_standard_interval_uses_students_t(scores, half_width):
    assert estimate(scores, convention="standard").half_width == pytest.approx(half_width)


@pytest.mark.parametrize("convention", ["paper", "standard"])
def test_one_seed_has_no_interval_and_equal_seeds_an_interval_of_zero(convention):
    assert estimate([0.7], convention=convention) == Estimate(0.7, None, 1)
    assert estimate([0.5, 0.5], convention=convention) == Estimate(0.5, 0.0, 2)
    assert estimate([], convention=convention) is None


def test_scores_agree_with_hand_arithmetic(tmp_path):
    # Seed 0 takes 2e-4 (validation 0.7), seed 1 takes 1e-4 (0.6): test scores 0.64 and 0.60.
    # Mean 0.62, s = 0.02 * sqrt(2), s / sqrt(2) = 0.02; 1.96 * 0.02 = 0.0392.
    scores = {
        ("mlm", "pydocs-sc", 1e-4, 0): (0.5, 0.9), ("mlm", "pydocs-sc", 2e-4, 0): (0.7, 0.64),
        ("mlm", "pydocs-sc", 1e-4, 1): (0.6, 0.60), ("mlm", "pydocs-sc", 2e-4, 1): (0.4, 0.8),
    }  # fmt: skip
    study = FakeStudy(arms=ARMS[1:2], tasks=TASKS[:1], seeds=(0, 1), learning_rates=(1e-4, 2e-4),
                      scores=scores, convention="paper")  # fmt: skip
    score = study_scores(load_records(*study.write(tmp_path))).cells["mlm", "pydocs-sc"]
    assert score.estimate == Estimate(pytest.approx(62), pytest.approx(3.92), 2)
    assert score.is_complete


def test_a_diverged_rate_lost_but_a_missing_one_leaves_the_cell_provisional(tmp_path):
    study = FakeStudy(
        arms=ARMS[1:3],
        diverged={("mlm", "pydocs-sc", 2e-4, 0)},
        missing={("clm", "pydocs-sc", 2e-4, 0)},
    )
    records = load_records(*study.write(tmp_path))
    cells = study_scores(records).cells
    assert cells["mlm", "pydocs-sc"].is_complete
    assert not cells["clm", "pydocs-sc"].is_complete
    for arm in ("mlm", "clm"):
        chosen = records.selected[arm, "pydocs-sc"]
        assert [run.seed for run in chosen] == [0, 1, 2, 3, 4]
        assert chosen[0].learning_rate != 2e-4


def test_a_seed_whose_every_run_diverged_is_left_out_of_the_mean(tmp_path):
    diverged = {("mlm", "pydocs-sc", rate, 3) for rate in (1e-4, 2e-4, 5e-4)}
    records = load_records(*FakeStudy(arms=ARMS[1:2], diverged=diverged).write(tmp_path))
    score = study_scores(records).cells["mlm", "pydocs-sc"]
    assert score.estimate is not None
    assert score.estimate.num_seeds == 4
    assert not score.is_complete


def test_scores_at_an_end_of_the_grid_are_marked_and_comparisons_of_them_are_provisional(tmp_path):
    rates, seeds, task = (1e-4, 2e-4, 5e-4), (0, 1), TASKS[0][0]
    # CLM is best at the highest rate, MLM at the middle one.
    scores = {
        (arm, task, rate, seed): (0.5 + gain, 0.6 + gain + seed / 100)
        for arm, gains in (("mlm", (0, 0.2, 0)), ("clm", (0, 0.1, 0.2)))
        for rate, gain in zip(rates, gains, strict=True)
        for seed in seeds
    }
    settings = {"learning_rates": rates, "seeds": seeds, "scores": scores}
    study = FakeStudy(steps=40, arms=ARMS[1:3], tasks=TASKS[:1], **settings)
    records = load_records(*study.write(tmp_path))
    found = study_scores(records)
    assert [found.get(arm, task).is_at_end for arm in ("mlm", "clm")] == [False, True]
    signed = {"CLM": True, "MLM": False}
    for text in ("\n".join(table_lines(format_table(records))), to_markdown(make_sheets(found))):
        rows = [line for line in text.splitlines() if " (" in line]  # those with scores
        lines = {name: next(row for row in rows if f"{name} " in row) for name in signed}
        assert {name: "‡" in line for name, line in lines.items()} == signed
        assert "‡: provisional: validation chooses the lowest or highest" in " ".join(text.split())
    [line] = [line for line in comparison_lines(found) if "CLM" in line and "MLM" in line]
    assert "provisional, as a learning rate is at the end of those tried" in line
