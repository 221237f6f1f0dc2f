import math

import pytest
from fake_study import ARMS, TASKS, FakeStudy

from biphasic.analysis.estimate import Estimate, estimate
from biphasic.analysis.records import Outcome, load_study
from biphasic.analysis.scores.runs import cells, ranking, select
from biphasic.records import ResultRecord, RunRecord


def outcome(seed: int, rate: float, validation: float, test: float) -> Outcome:
    run = RunRecord(id=f"{seed}-{rate}", arm="a", task="t", learning_rate=rate, seed=seed)
    result = ResultRecord(
        format="biphasic.finetune/1", id=run.id, state="s", task="t", kind="sc", metric="accuracy",
        learning_rate=rate, seed=seed, status="finished", steps=1,
        validation={"accuracy": validation}, test={"accuracy": test}, seconds=1.0,
    )  # fmt: skip
    return Outcome(run, "finished", result)


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


def test_each_seed_takes_its_best_validation_rate_whatever_its_test_score():
    outcomes = [
        outcome(0, 1e-4, 0.70, 0.10), outcome(0, 2e-4, 0.60, 0.90),
        outcome(1, 1e-4, 0.50, 0.80), outcome(1, 2e-4, 0.60, 0.30),
    ]  # fmt: skip
    chosen = select(reversed(outcomes), metric="accuracy")
    assert [(run.run.seed, run.run.learning_rate) for run in chosen] == [(0, 1e-4), (1, 2e-4)]


def test_on_a_tie_in_validation_the_smaller_rate_wins_in_any_order():
    runs = [outcome(0, rate, 0.5, rate) for rate in (5e-4, 1e-5, 2e-4)]
    for order in (runs, runs[::-1]):
        assert [run.run.learning_rate for run in select(order, metric="accuracy")] == [1e-5]


def test_cells_agree_with_hand_arithmetic(tmp_path):
    # Seed 0 takes 2e-4 (validation 0.7), seed 1 takes 1e-4 (0.6): test scores 0.64 and 0.60.
    # Mean 0.62, s = 0.02 * sqrt(2), s / sqrt(2) = 0.02; 1.96 * 0.02 = 0.0392.
    scores = {
        ("mlm", "pydocs-sc", 1e-4, 0): (0.5, 0.9), ("mlm", "pydocs-sc", 2e-4, 0): (0.7, 0.64),
        ("mlm", "pydocs-sc", 1e-4, 1): (0.6, 0.60), ("mlm", "pydocs-sc", 2e-4, 1): (0.4, 0.8),
    }  # fmt: skip
    study = FakeStudy(arms=ARMS[1:2], tasks=TASKS[:1], seeds=(0, 1), learning_rates=(1e-4, 2e-4),
                      scores=scores, convention="paper")  # fmt: skip
    cell = cells(load_study(*study.write(tmp_path)))["mlm", "pydocs-sc"]
    assert cell.estimate == Estimate(pytest.approx(0.62), pytest.approx(0.0392), 2)
    assert cell.is_complete


def test_a_diverged_rate_lost_but_a_missing_one_leaves_the_cell_provisional(tmp_path):
    study = FakeStudy(
        arms=ARMS[1:3],
        diverged={("mlm", "pydocs-sc", 2e-4, 0)},
        missing={("clm", "pydocs-sc", 2e-4, 0)},
    )
    table = cells(load_study(*study.write(tmp_path)))
    assert table["mlm", "pydocs-sc"].is_complete
    assert not table["clm", "pydocs-sc"].is_complete
    for arm in ("mlm", "clm"):
        chosen = table[arm, "pydocs-sc"].selected
        assert [run.run.seed for run in chosen] == [0, 1, 2, 3, 4]
        assert chosen[0].run.learning_rate != 2e-4


def test_a_seed_whose_every_run_diverged_is_left_out_of_the_mean(tmp_path):
    diverged = {("mlm", "pydocs-sc", rate, 3) for rate in (1e-4, 2e-4, 5e-4)}
    table = cells(load_study(*FakeStudy(arms=ARMS[1:2], diverged=diverged).write(tmp_path)))
    cell = table["mlm", "pydocs-sc"]
    assert cell.estimate is not None
    assert cell.estimate.num_seeds == 4
    assert not cell.is_complete


def test_ranking_is_by_mean_and_keeps_the_studys_order_on_ties(tmp_path):
    records = load_study(*FakeStudy().write(tmp_path))
    order = ranking(cells(records), "pydocs-ir")
    assert order[0][0] == "clm-50-mlm-50"
    assert [found.mean for _, found in order] == sorted((f.mean for _, f in order), reverse=True)
