"""Sentences say what was found, and not more."""

import dataclasses

import numpy as np
import pytest
from fake_study import ARMS, TASKS, FakeStudy
from made_scores import DATASET, compare_arms, made_scores, scores_with_examples

from biphasic.amounts import number
from biphasic.analysis.records import load_records
from biphasic.analysis.scores.source import study_scores
from biphasic.analysis.scores.table import DatasetInfo, ModelInfo, at_one_rate
from biphasic.analysis.statistics.compare import family_of
from biphasic.analysis.statistics.variance import SpreadSource
from biphasic.analysis.tables.text import comparison_sentence, notes
from biphasic.analysis.words import coverage_sentence, selection_gains, selection_sentence, words

FIVE = {"a": [1.0, 2.0, 3.0, 4.0, 5.0], "b": [0.0] * 5}


def compare(by_model, **options):
    return compare_arms(made_scores(by_model, **options), "a", "b", "d")


def test_a_clear_difference_names_size_interval_and_p():
    assert comparison_sentence(compare(FIVE), {"a": "Arm A"}) == (
        "Arm A is 3.00 points above b (95 % interval 1.04 to 4.96, 5 paired seeds, p = 0.013): "
        "the difference is clear."
    )
    below = compare_arms(made_scores(FIVE), "b", "a", "d")
    assert comparison_sentence(below).startswith("b is 3.00 points below a (95 % interval -4.96")


def test_a_difference_that_rounds_to_zero_is_not_zero_points():
    near = compare({"a": [50.004, 51.0, 52.0], "b": [50.0, 51.0, 52.0]})
    assert comparison_sentence(near).startswith("a is less than 0.01 points above b (")
    further = compare({"a": [50.03, 51.0, 52.0], "b": [50.0, 51.0, 52.0]})
    assert comparison_sentence(further).startswith("a is 0.01 points above b (")


def test_a_family_and_an_undecided_difference_are_described():
    draw = np.random.default_rng(2)
    by_model = {name: draw.normal(50, 1, 5).tolist() for name in "abcd"}
    found = family_of(made_scores(by_model), "d").with_best[0]
    sentence = comparison_sentence(found)
    assert "corrected for 6 comparisons" in sentence
    assert sentence.endswith("there is no clear difference.")


@pytest.mark.parametrize(
    ("by_model", "reason"),
    [
        ({"a": [1.0], "b": [0.5]}, "with one pair of scores, it cannot be tested"),
        ({"a": {0: 1.0}, "b": {1: 0.5}}, "with fewer than two seeds of each"),
        ({"a": [1.0, 2.0], "b": [0.0, 1.0]}, "every seed gives the same difference"),
    ],
)
def test_an_unknown_comparison_states_the_reason(by_model, reason):
    sentence = comparison_sentence(compare(by_model))
    assert reason in sentence
    assert "p =" not in sentence


@pytest.mark.parametrize("other", [{0: 51.0, 1: 40.0}, {0: 51.0, 1: 40.0, 2: 41.0, 3: 42.0}])
def test_a_difference_of_common_seeds_says_so(other):
    """The first has the higher mean, and the lower score with each seed that both have."""
    found = compare({"a": {0: 50.0}, "b": other})
    assert comparison_sentence(found).startswith("a is 1.00 points below b over the seeds that")
    assert "that both have" not in comparison_sentence(compare(FIVE))


def test_the_detectable_difference_is_in_points():
    # Deviation of 1..5 is sqrt(2.5) = 1.5811; times 1.6820 is 2.66.
    assert words().detectable(compare(FIVE)) == (
        "With 5 seeds, a difference of 2.66 points would be clear four times in five."
    )
    assert words().detectable(compare({"a": [1.0], "b": [0.5]})) == ""


def test_examples_are_described_or_the_reason_for_their_absence():
    draw = np.random.default_rng(0)
    matrices = {name: draw.random((3, 50)) < share for name, share in (("a", 0.9), ("b", 0.1))}
    scores = scores_with_examples(matrices)
    found = compare_arms(scores, "a", "b", "d")
    assert words().examples(found) == (
        "Standard errors in points: 5.33 over 3 seeds, 3.63 over 50 test examples."
    )
    assert "3 paired seeds and 50 test examples" in comparison_sentence(found)
    assert words().detectable(found).startswith("With 3 seeds and 50 test examples, a difference")
    bare = dataclasses.replace(scores, examples=None)
    assert words().examples(compare_arms(bare, "a", "b", "d")) == (
        "Unknown over test examples: there are no scores of single examples."
    )


def test_doubt_over_examples_is_described():
    rows = {"a": np.zeros((5, 40)), "b": np.zeros((5, 40))}
    rows["a"][:, :11] = 1
    rows["b"][:, 20:30] = 1
    rows["a"][0, 12] = 1
    sentence = comparison_sentence(compare_arms(scores_with_examples(rows), "a", "b", "d"))
    assert "clear over seeds, but other test examples could reverse it" in sentence


def test_pretraining_runs_are_not_called_seeds():
    scores = dataclasses.replace(made_scores(FIVE), num_pretraining_runs=5)
    found = compare_arms(scores, "a", "b", "d")
    assert "5 paired pretraining runs" in comparison_sentence(found)
    assert words().detectable(found).startswith("With 5 pretraining runs, a difference of")
    assert "with 5 pretraining runs." in coverage_sentence("standard", 5, scores.unit)


def test_coverage_is_described_for_both_conventions():
    assert coverage_sentence("paper", 5) == (
        "Intervals by convention 'paper' (1.96 standard errors) cover the true mean about 88 times "
        "in 100 with 5 seeds, not 95."
    )
    assert coverage_sentence("standard", 5).endswith("about 95 times in 100 with 5 seeds.")
    assert coverage_sentence("paper", 1) == "One seed gives no interval."


def test_the_number_of_pretraining_runs_is_described():
    assert "pretrained once" in words().pretraining(made_scores(FIVE))
    infos = {n: ModelInfo(n, n, identity=n, replicate_of="r") for n in "ab"}
    several = made_scores({**FIVE, "c": [1.0, 2.0]}, **infos)
    assert (
        words()
        .pretraining(several)
        .startswith("1 recipe pretrained with several seeds (2 runs); 1 model once.")
    )


def test_what_selection_adds_by_hand():
    # Means 3 and 0 with the best rate per seed, 2 and 0.5 with one: +1 and -0.5.
    scores = made_scores(FIVE)
    one = {"a": dict(enumerate([2.0] * 5)), "b": dict(enumerate([0.5] * 5))}
    cells = {
        key: dataclasses.replace(score, at_one_rate=one[key[0]], num_rates=3)
        for key, score in scores.cells.items()
    }
    scores = dataclasses.replace(scores, cells=cells)
    assert selection_gains(scores, "d") == {"a": pytest.approx(1.0), "b": pytest.approx(-0.5)}
    assert "+0.25 points on average over 2 models, and by +1.00 at most (a)" in (
        selection_sentence(scores, "d")
    )
    assert selection_sentence(made_scores(FIVE), "d") == ""
    # Where one rate stands for all, there is nothing to compare it with.
    assert selection_sentence(at_one_rate(scores), "d") == ""
    assert at_one_rate(scores).get("a", "d").num_rates == 1


def selected(gains, **options):
    """Return scores whose means differ by some gains from those at one rate for all seeds."""
    scores = made_scores({name: [50.0, 51.0] for name in gains}, **options)
    cells = {
        key: dataclasses.replace(
            score,
            at_one_rate={seed: value - gains[key[0]] for seed, value in score.by_seed.items()},
            num_rates=3,
        )
        for key, score in scores.cells.items()
    }
    return dataclasses.replace(scores, cells=cells)


def test_a_selection_that_adds_nothing_is_not_called_a_change():
    assert selection_sentence(selected({"a": 0.0, "b": 0.0}), "d").endswith(
        "changes no mean by 0.01 points or more."
    )
    assert selection_sentence(selected({"a": 0.25}), "d").endswith(
        "changes the mean of a by +0.25 points."
    )


def test_one_seed_has_no_other_rate_than_all_seeds(tmp_path):
    study = FakeStudy(steps=40, arms=ARMS[:3], tasks=TASKS[:1])
    for seeds, is_described in (((0,), False), ((0, 1, 2), True)):
        study.seeds = seeds
        scores = study_scores(load_records(*study.write(tmp_path / str(len(seeds)))))
        assert scores.get("mlm", "pydocs-sc").num_rates == 3
        assert bool(selection_sentence(scores, "pydocs-sc")) == is_described


def test_sources_and_numbers():
    assert words().source(SpreadSource("test examples", 0.5, "2 models")) == (
        "Test examples: 0.50 points (2 models)."
    )
    assert words().source(SpreadSource("test examples", None, "x")) == "Test examples: unknown (x)."
    assert number(-0.001) == "0.00"


def test_hostile_labels_are_cut_and_stay_text():
    scores = made_scores(FIVE)
    models = tuple(map(ModelInfo, "ab", ["x" * 300, "<b>\x1b[31m"]))
    labels = dataclasses.replace(scores, models=models).short_labels
    sentence = comparison_sentence(compare(FIVE), labels)
    assert len(sentence) < 300
    assert "\x1b" not in sentence
    assert "<b>" in sentence


def test_zero_shot_is_described_over_examples():
    draw = np.random.default_rng(1)
    rows = {"a": draw.random((1, 300)) < 0.9, "b": draw.random((1, 300)) < 0.5}
    zero_shot = (DatasetInfo("d", "ZS", "ndcg_at_10"),)
    found = compare_arms(scores_with_examples(rows, datasets=zero_shot), "a", "b", "d")
    assert "the difference is clear" in comparison_sentence(found)
    assert ", 300 test examples, p" in comparison_sentence(found)
    assert words().detectable(found).startswith("With 300 test examples, a difference of")
    assert words().examples(found) == "Standard error in points: 3.45 over 300 test examples."


def test_zero_shot_scores_rest_on_no_seed():
    zero = DatasetInfo("z", "ZS", "ndcg_at_10")
    alone = " ".join(notes(made_scores({"a": [50.0], "b": [60.0]}, datasets=(zero,))))
    assert "nothing random" in alone
    assert "seed" not in alone
    both = {("a", "d"): [50.0], ("a", "z"): [50.0]}
    text = " ".join(notes(made_scores(both, datasets=(DATASET, zero))))
    assert "A mean without an interval rests on one seed." in text
    assert "nothing random" in text


def test_an_interval_wider_than_the_scale_is_no_number():
    found = compare({"a": [40.0, 90.0], "b": [60.0, 61.0]})
    assert found.interval[1] - found.interval[0] > 200
    assert comparison_sentence(found) == (
        "a is 4.50 points above b (its 95 % interval is wider than the scale, p = 0.884): there "
        "is no clear difference."
    )
