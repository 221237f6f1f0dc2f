"""Metrics from sums over examples, against the libraries that define them; the bootstrap."""

import math

import numpy as np
import pytest

from biphasic.analysis.examples import check_value, mean_examples, metric_examples
from biphasic.analysis.resample import example_interval, resampled_values
from biphasic.errors import DataError


def draw_labels(num=300, classes=("no", "yes", "perhaps")):
    draw = np.random.default_rng(0)
    labels = draw.choice(classes, num, p=(0.6, 0.3, 0.1))
    predicted = np.where(draw.random(num) < 0.7, labels, draw.choice(classes, num))
    return labels.tolist(), predicted.tolist()


@pytest.mark.parametrize("metric", ["macro_f1", "matthews"])
def test_metrics_of_classes_are_scikit_learn_s(metric):
    from sklearn.metrics import f1_score, matthews_corrcoef

    labels, predicted = draw_labels()
    expected = {
        "macro_f1": f1_score(labels, predicted, average="macro"),
        "matthews": matthews_corrcoef(labels, predicted),
    }[metric]
    found = metric_examples(metric, {"label": labels, "predicted": predicted})
    assert found.value == pytest.approx(expected, abs=1e-12)


def test_entity_f1_counts_entities_not_sentences():
    # Right 1 + 2 of 3 + 2 expected and 1 + 4 predicted: F1 = 2 * 3 / (5 + 5).
    columns = {"num_entities": [3, 2], "num_predicted": [1, 4], "num_right": [1, 2]}
    assert metric_examples("entity_f1", columns).value == pytest.approx(0.6)
    nothing = {"num_entities": [0], "num_predicted": [0], "num_right": [0]}
    assert metric_examples("entity_f1", nothing).value == 0.0


def test_pearson_is_scipy_s_whatever_the_offset():
    from scipy.stats import pearsonr

    draw = np.random.default_rng(1)
    values = draw.normal(1e6, 1.0, 50)
    predicted = values + draw.normal(0, 1, 50)
    found = metric_examples("pearson", {"value": values, "predicted": predicted})
    assert found.value == pytest.approx(pearsonr(values, predicted).statistic, abs=1e-9)


@pytest.mark.parametrize("metric", ["f1", "ndcg_at_10", "sentence_token_f1", "exact_match"])
def test_other_metrics_are_means_of_their_column(metric):
    assert metric_examples(metric, {metric: [0.0, 0.5, 1.0]}).value == pytest.approx(0.5)


def test_a_metric_without_its_columns_or_without_sums_is_refused():
    with pytest.raises(DataError, match="no correct"):
        metric_examples("accuracy", {"score": [1.0]})
    with pytest.raises(DataError, match="ranks"):
        metric_examples("spearman", {"value": [1.0, 2.0], "predicted": [1.0, 2.0]})


def test_examples_that_do_not_give_the_recorded_score_are_refused():
    run = mean_examples([1.0, 0.0])
    check_value(run, 0.5, where="run")
    for wrong in (0.51, math.nan):
        with pytest.raises(DataError, match="run: its examples give 0"):
            check_value(run, wrong, where="run")


def test_resamples_are_the_same_for_all_runs_and_each_time():
    draw = np.random.default_rng(2)
    runs = [mean_examples(draw.random(40)) for _ in range(3)]
    together = resampled_values(runs, dataset="d", num_resamples=50)
    alone = [resampled_values([run], dataset="d", num_resamples=50)[0] for run in runs]
    assert np.array_equal(together, np.stack(alone))
    other = resampled_values(runs, dataset="e", num_resamples=50)
    assert not np.array_equal(together, other)


def test_resamples_spread_as_the_error_of_a_mean():
    scores = np.random.default_rng(3).normal(0.5, 0.2, 400)
    [values] = resampled_values([mean_examples(scores)], dataset="d", num_resamples=4_000)
    assert values.mean() == pytest.approx(scores.mean(), abs=0.001)
    assert values.std() == pytest.approx(scores.std() / 20, rel=0.05)


def test_many_examples_are_resampled_in_blocks():
    # 3,000 examples and 2,000 resamples are six million weights: more than are held at once.
    scores = np.random.default_rng(4).random(3_000)
    [values] = resampled_values([mean_examples(scores)], dataset="d")
    assert len(values) == 2_000
    assert len(np.unique(values)) > 1_900
    assert values.std() == pytest.approx(scores.std() / math.sqrt(3_000), rel=0.06)


def test_the_interval_over_seeds_alone_is_student_s():
    # All examples alike, so that only seeds vary: 1..5 as in the tests of intervals.
    differences = [1.0, 2.0, 3.0, 4.0, 5.0]
    resampled = np.repeat(np.array(differences)[:, None], 2_000, axis=1)
    found = example_interval(differences, resampled, num_examples=100)
    assert found.example_error == 0.0
    assert found.seed_error == pytest.approx(math.sqrt(0.5), rel=0.03)
    assert (found.high - found.low) / 2 == pytest.approx(2.7764451 * math.sqrt(0.5), rel=0.03)


def test_the_interval_over_examples_alone_is_normal():
    draw = np.random.default_rng(5)
    resampled = 2 + 0.5 * draw.normal(size=(1, 2_000))
    found = example_interval([2.0], resampled, num_examples=10_000)
    assert found.seed_error == 0.0
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * 0.5, rel=0.05)
    assert found.excludes_zero
    assert found.p_value == pytest.approx(6.3e-5, rel=0.9)


def test_examples_never_make_an_interval_narrower_than_seeds_alone_do():
    # Two seeds, 0 and 10: error 5, half-width 12.706 * 5; the joint freedom would be above one.
    resampled = np.array([[0.0], [10.0]]) + 3 * np.random.default_rng(6).normal(size=(1, 2_000))
    found = example_interval([0.0, 10.0], resampled, num_examples=50)
    assert (found.high - found.low) / 2 >= 12.7 * found.seed_error > 12.7 * 4.5
    assert found.p_value > 0.3


def test_an_interval_without_any_error_is_a_point():
    found = example_interval([1.0], np.ones((1, 2_000)), num_examples=50)
    assert (found.low, found.high) == (1.0, 1.0)
    assert example_interval([0.0], np.zeros((1, 20)), num_examples=50).p_value == 1.0
