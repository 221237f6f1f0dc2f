"""Other people's results: what is read, what is named and left out."""

import json
import math

import numpy as np
import pytest
from made_layout import write_cell, write_run
from made_scores import compare_arms

from biphasic.analysis.estimate import Estimate
from biphasic.analysis.scores.layout import read_layout
from biphasic.analysis.tables.text import notes
from biphasic.errors import DataError


def texts(layout):
    return [problem.text for problem in layout.problems]


def test_scores_are_those_of_the_best_validation_rate_in_percent_points(tmp_path):
    # Seed 0 takes 1e-4, seed 1 takes 1e-5: 0.64 and 0.60; mean 62, error 2.
    for rate, seed, validation, test in (
        ("1e-05", 0, 0.5, 0.9), ("1e-4", 0, 0.7, 0.64),
        ("1e-05", 1, 0.6, 0.60), ("1e-4", 1, 0.4, 0.8),
    ):  # fmt: skip
        write_run(tmp_path, "results/m/sc/MNLI", rate, seed, validation, test)
    layout = read_layout(tmp_path)
    assert layout.problems == ()
    score = layout.scores("paper").get("m", "MNLI")
    assert score.estimate == Estimate(pytest.approx(62.0), pytest.approx(1.96 * 2), 2)
    assert score.by_seed == {0: pytest.approx(64.0), 1: pytest.approx(60.0)}
    assert score.is_complete
    # One rate for both: means 0.55 and 0.55 tie, and the smaller rate wins.
    assert score.one_rate == 1e-5
    assert score.at_one_rate == {0: pytest.approx(90.0), 1: pytest.approx(60.0)}
    standard = read_layout(tmp_path / "results").scores().get("m", "MNLI").estimate
    assert standard.half_width == pytest.approx(12.706204736 * 2)


def test_averages_are_over_the_datasets_of_a_task(tmp_path):
    write_cell(tmp_path, "m/sc/MNLI", {"1e-4": [0.6, 0.8]})
    write_cell(tmp_path, "m/sc/QQP", {"1e-4": [0.9, 0.7]})
    write_cell(tmp_path, "m/ir/NQ", {"1e-4": [0.5, 0.5]})
    scores = read_layout(tmp_path).scores()
    assert [d.name for d in scores.datasets] == ["NQ", "MNLI", "QQP", "SC Average"]
    assert scores.get("m", "SC Average").estimate == Estimate(pytest.approx(75.0), 0.0, 2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"validation": {"score": 0.5', "Expecting"),
        ("[]", "no number as 'validation.score'"),
        ('{"validation": {"score": 0.5}}', "no number as 'test.score'"),
        ('{"validation": {"score": 0.5}, "test": {"score": NaN}}', "is nan, not a share"),
        ('{"validation": {"score": Infinity}, "test": {"score": 0.5}}', "is inf, not a share"),
        ('{"validation": {"score": 0.5}, "test": {"score": "0.5"}}', "no number as 'test.score'"),
        ('{"validation": {"score": 0.5}, "test": {"score": true}}', "no number as 'test.score'"),
        ('{"validation": {"score": 0.5}, "test": {"score": 87.8}}', "not a share between 0 and 1"),
        ("", "Expecting value"),
        (b"\xff\xfe\x00", "'utf-8' codec can't decode"),
    ],
)
def test_a_damaged_run_is_named_and_never_averaged_in(tmp_path, content, message):
    write_cell(tmp_path, "m/sc/MNLI", {"1e-4": [0.6, 0.8, 0.7]})
    path = tmp_path / "m/sc/MNLI/lr1e-4_sd2/results.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    layout = read_layout(tmp_path)
    assert layout.problems[0].kind == "damaged"
    assert any("m/sc/MNLI/lr1e-4_sd2/results.json" in text and message in text
               for text in texts(layout))  # fmt: skip
    score = layout.scores("standard").get("m", "MNLI")
    assert score.by_seed == {0: pytest.approx(60.0), 1: pytest.approx(80.0)}


def test_an_unfinished_run_and_one_that_others_have_are_named(tmp_path):
    write_cell(tmp_path, "m/sc/MNLI", {"1e-4": [0.6, 0.8], "1e-5": [0.5, 0.5]})
    write_cell(tmp_path, "n/sc/MNLI", {"1e-4": [0.6, 0.8], "1e-5": [0.5]})
    write_cell(tmp_path, "n/sc/QQP", {"1e-4": [0.6, 0.8]})
    (tmp_path / "m/sc/MNLI/lr1e-4_sd0/results.json").unlink()
    layout = read_layout(tmp_path)
    assert [problem.kind for problem in layout.problems] == ["missing"] * 4
    assert texts(layout) == [
        "m/sc/MNLI/lr1e-4_sd0/results.json: missing; the run has not finished",
        "m on MNLI: 1 of 4 runs without a score: learning rate 1e-4 with seed 0",
        "m has no results on QQP",
        "n on MNLI: 1 of 4 runs without a score: learning rate 1e-5 with seed 1",
    ]
    scores = layout.scores("standard")
    assert not scores.get("n", "MNLI").is_complete
    assert scores.get("n", "QQP").is_complete
    # Seed 0 of m is still there, at the rate that is left.
    assert scores.get("m", "MNLI").by_seed == {0: pytest.approx(50.0), 1: pytest.approx(80.0)}


def test_duplicate_runs_count_once_if_equal_and_are_skipped_if_not(tmp_path):
    write_cell(tmp_path, "m/sc/MNLI", {"1e-4": [0.6, 0.8, 0.7]})
    write_run(tmp_path, "m/sc/MNLI", "0.0001", 0, 0.9, 0.6)
    write_run(tmp_path, "m/sc/MNLI", "0.0001", 1, 0.9, 0.9)
    layout = read_layout(tmp_path)
    messages = [text for text in texts(layout) if "duplicate runs" in text]
    assert ["one is used" in text for text in messages] == [True, False]
    by_seed = layout.scores("standard").get("m", "MNLI").by_seed
    assert by_seed == {0: pytest.approx(60.0), 2: pytest.approx(70.0)}


def test_folders_of_other_names_are_named_and_owners_are_kept(tmp_path):
    write_cell(tmp_path, "owner/m/sc/MNLI", {"1e-4": [0.6, 0.8]})
    for wrong in ("run-1", "lrfast_sd1", "lr1e-4_sd1"):
        folder = tmp_path / (wrong if wrong == "lr1e-4_sd1" else f"owner/m/sc/MNLI/{wrong}")
        folder.mkdir()
        (folder / "results.json").write_text("{}")
    layout = read_layout(tmp_path)
    assert len([text for text in texts(layout) if "not named" in text]) == 3
    assert layout.scores("standard").get("owner/m", "MNLI").estimate.num_seeds == 2


def test_datasets_of_one_name_in_two_tasks_stay_apart(tmp_path):
    write_cell(tmp_path, "m/sc/x", {"1e-4": [0.6, 0.8]})
    write_cell(tmp_path, "m/qa/x", {"1e-4": [0.1, 0.2]})
    scores = read_layout(tmp_path).scores()
    assert [d.name for d in scores.datasets] == ["qa/x", "sc/x"]
    assert scores.get("m", "sc/x").estimate.mean == pytest.approx(70.0)


def test_without_a_run_there_is_one_clear_error(tmp_path):
    with pytest.raises(DataError, match="no such folder"):
        read_layout(tmp_path / "nowhere")
    with pytest.raises(DataError, match="MODEL/TASK/DATASET"):
        read_layout(tmp_path)
    write_run(tmp_path, "m/sc/MNLI", "1e-4", 0, math.nan, 0.5)
    with pytest.raises(DataError, match="lr1e-4_sd0"):
        read_layout(tmp_path)


def test_single_examples_are_read_from_the_selected_runs(tmp_path):
    for model, right in (("a", 9), ("b", 2)):
        for seed in range(3):
            answers = [1.0] * right + [0.0] * (10 - right)
            answers[seed] = 1.0 - answers[seed]
            write_run(tmp_path, f"{model}/sc/MNLI", "1e-4", seed, 0.9, answers)
            write_run(tmp_path, f"{model}/sc/MNLI", "1e-5", seed, 0.1, [0.0])
    found = compare_arms(read_layout(tmp_path).scores(), "a", "b", "MNLI")
    assert found.num_examples == 10
    assert found.num_pairs == 3


@pytest.mark.parametrize(
    ("scores_i", "reason"),
    [
        (None, "not a list of numbers"),
        ([], "not a list of numbers"),
        ([0.5, "x"], "not a list of numbers"),
        ([0.5, math.nan], "not a list of numbers"),
        ([0.9, 0.9], "its examples give 0.9"),
    ],
)
def test_examples_that_do_not_fit_are_not_used(tmp_path, scores_i, reason):
    for model in ("a", "b"):
        for seed in range(2):
            path = write_run(tmp_path, f"{model}/sc/x", "1e-4", seed, 0.9, [0.5, 0.7 - seed / 10])
    raw = json.loads(path.read_text())
    raw["test"]["scores_i"] = scores_i
    path.write_text(json.dumps(raw))
    found = compare_arms(read_layout(tmp_path).scores(), "a", "b", "x")
    assert found.num_examples == 0
    assert reason in found.missing
    assert "b/sc/x/lr1e-4_sd1" in found.missing


def test_every_kind_of_task_of_the_public_layout_has_means_and_intervals(tmp_path):
    """Retrieval runs name the set that they were trained on before the learning rate."""
    draw = np.random.default_rng(0)
    for model, skill in (("610m-clm-42k", 0.6), ("610m-mlm40-42k", 0.8)):
        for place in (
            "SC/SST-2/", "SC/QQP/", "TC/CoNLL/", "QA/SQuAD/", "IR/NQ/msmarco_pairs_",
            "IR/MLDR/msmarco_pairs_", "IR/msmarco/msmarco_pairs_",
        ):  # fmt: skip
            for rate, validation in (("1e-04", 0.5), ("2e-05", 0.4)):
                for seed in range(5):
                    answers = (draw.random(60) < skill).astype(float).tolist()
                    where = f"results/{model}/{place}"
                    write_run(tmp_path, where, rate, seed, validation, answers)
    layout = read_layout(tmp_path)
    assert layout.problems == ()
    scores = layout.scores("standard")
    assert [(d.name, d.task, d.trained_on) for d in scores.datasets] == [
        ("MLDR", "IR", "msmarco_pairs"), ("NQ", "IR", "msmarco_pairs"),
        ("msmarco", "IR", "msmarco_pairs"), ("IR Average", "IR", ""),
        ("SQuAD", "QA", ""), ("QQP", "SC", ""), ("SST-2", "SC", ""), ("SC Average", "SC", ""),
        ("CoNLL", "TC", ""),
    ]  # fmt: skip
    assert len(scores.cells) == 2 * 9
    for score in scores.cells.values():
        assert (score.estimate.num_seeds, score.is_complete) == (5, True)
        assert score.estimate.half_width > 0
    assert "Fine-tuned on msmarco_pairs: MLDR, NQ and msmarco." in notes(scores)
    found = compare_arms(scores, "610m-mlm40-42k", "610m-clm-42k", "IR Average")
    assert (found.num_examples, found.verdict) == (180, "higher")


def test_runs_trained_on_different_sets_are_not_compared(tmp_path):
    for model in ("a", "b"):
        write_cell(tmp_path, f"{model}/IR/NQ/msmarco_pairs_", {"1e-4": [0.4, 0.5]})
        write_cell(tmp_path, f"{model}/IR/MLDR/msmarco_pairs_", {"1e-4": [0.3, 0.2]})
    write_cell(tmp_path, "a/IR/NQ/nq_pairs_", {"1e-4": [0.9, 0.8]})
    write_cell(tmp_path, "b/IR/NQ", {"1e-4": [0.7, 0.6]})
    layout = read_layout(tmp_path)
    scores = layout.scores("standard")
    assert [(d.name, d.task) for d in scores.datasets] == [
        ("NQ", "IR"), ("MLDR (msmarco_pairs)", "IR (msmarco_pairs)"),
        ("NQ (msmarco_pairs)", "IR (msmarco_pairs)"),
        ("IR (msmarco_pairs) Average", "IR (msmarco_pairs)"), ("NQ (nq_pairs)", "IR (nq_pairs)"),
    ]  # fmt: skip
    assert scores.get("a", "NQ (msmarco_pairs)").estimate.mean == pytest.approx(45.0)
    assert compare_arms(scores, "a", "b", "NQ (nq_pairs)") is None
    assert compare_arms(scores, "a", "b", "IR (msmarco_pairs) Average").mean == 0
    assert "b has no results on NQ (nq_pairs)" in texts(layout)


def test_a_model_named_like_a_run_is_no_run(tmp_path):
    write_cell(tmp_path, "bert_lr1e-4_sd3/SC/MNLI", {"1e-4": [0.6, 0.8]})
    layout = read_layout(tmp_path)
    assert layout.problems == ()
    assert layout.scores("paper").get("bert_lr1e-4_sd3", "MNLI").estimate.num_seeds == 2
