"""Metrics from sums over examples, against the libraries that define them; their errors."""

import math

import numpy as np
import pytest
from scipy.special import stdtr, stdtrit

from biphasic.analysis.scores.examples import (
    check_value,
    mean_examples,
    mean_of_runs,
    metric_examples,
)
from biphasic.analysis.statistics.contrast import contrast_of
from biphasic.analysis.statistics.crossed import CrossedErrors, squared_errors
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


def test_influences_on_a_mean_are_deviations_from_it():
    scores = [0.0, 1.0, 1.0, 0.5]
    assert mean_examples(scores).influences == pytest.approx([-0.625, 0.375, 0.375, -0.125])
    # 1 of 2 right: without either example F1 is 0 or 1.
    columns = {"num_entities": [1, 1], "num_predicted": [1, 1], "num_right": [1, 0]}
    assert metric_examples("entity_f1", columns).influences == pytest.approx([0.5, -0.5])


@pytest.mark.parametrize("metric", ["macro_f1", "matthews"])
def test_influences_give_the_error_that_drawing_other_examples_does(metric):
    labels, predicted = draw_labels()
    run = metric_examples(metric, {"label": labels, "predicted": predicted})
    draw = np.random.default_rng(6)
    weights = draw.multinomial(300, [1 / 300] * 300, size=4_000)
    resampled = run.combine(run.terms @ weights.T)
    error = math.sqrt(run.influences.var(ddof=1) / 300)
    assert error == pytest.approx(resampled.std(), rel=0.06)


def test_a_mean_of_runs_moves_as_the_mean_of_their_influences():
    labels, predicted = draw_labels()
    runs = [
        metric_examples("macro_f1", {"label": labels, "predicted": guess})
        for guess in (predicted, labels, predicted[::-1])
    ]
    together = mean_of_runs(runs)
    assert together.value == pytest.approx(np.mean([run.value for run in runs]))
    expected = np.mean([run.influences for run in runs], axis=0)
    assert together.influences == pytest.approx(expected, abs=1e-12)


def errors(examples, shared=0.0, num_examples=100):
    return CrossedErrors(
        np.array([examples]), np.array([shared]), num_examples, num_examples, num_examples - 1
    )


def contrast_from(differences, errors):
    by_seed = dict(enumerate(differences))
    return contrast_of(by_seed, errors, without_seeds=len(by_seed) == 1)


def width(found):
    low, high = found.interval
    return (high - low) / 2


def test_the_interval_over_seeds_alone_is_student_s():
    # All examples alike, so that only seeds vary: 1..5 as in the tests of intervals.
    found = contrast_from([1.0, 2.0, 3.0, 4.0, 5.0], errors(0.0))
    assert found.example_error == 0.0
    assert found.deciding.seed_error == pytest.approx(math.sqrt(0.5))
    assert width(found) == pytest.approx(2.7764451 * math.sqrt(0.5))
    assert found.p_value == pytest.approx(0.0132, abs=1e-4)


def test_the_interval_over_examples_alone_is_normal():
    found = contrast_from([2.0], errors(0.25, num_examples=10_000))
    assert found.deciding.seed_error == 0.0
    assert width(found) == pytest.approx(1.96 * 0.5, rel=0.001)
    assert found.interval[0] > 0
    assert found.p_value == pytest.approx(6.3e-5, rel=0.02)


def test_examples_never_make_an_interval_narrower_than_seeds_alone_do():
    # Two seeds, 0 and 10: error 5, half-width 12.706 * 5; the joint freedom would be above one.
    found = contrast_from([0.0, 10.0], errors(9.0, num_examples=50))
    assert width(found) == pytest.approx(12.7062 * 5)
    assert found.p_value == pytest.approx(0.5)


def errors_of(table):
    found = squared_errors(table, np.zeros_like(table))
    return found.examples.item(), found.shared.item()


def test_errors_of_a_table_by_hand():
    # Differences of two seeds on three examples: rows 2 and 4 on average, columns 2, 3 and 4.
    # Examples: variance of the columns 1, over 3. What is left: all 0.
    one = np.array([[[1.0, 2.0, 3.0], [3.0, 4.0, 5.0]]])
    one -= one.mean(axis=2, keepdims=True)
    assert errors_of(one) == (pytest.approx(1 / 3), pytest.approx(0.0))
    # Left of rows (1, -1, 0) and (-1, 1, 0) of a table without columns: 4 / 2 freedoms / 2 / 3.
    one = np.array([[[1.0, -1.0, 0.0], [-1.0, 1.0, 0.0]]])
    assert errors_of(one) == (0.0, pytest.approx(1 / 3))


def test_what_seeds_and_examples_do_together_counts_once():
    seeds = np.array([1.0, 3.0, 2.0, 2.0, 2.0])  # squared error 0.1
    found = contrast_from(seeds, errors(0.4, 0.05))
    freedom = 0.45**2 / (0.1**2 / 4 + 0.4**2 / 99 + 0.05**2 / 396)
    assert found.p_value == pytest.approx(2 * stdtr(freedom, -2 / math.sqrt(0.45)))


def test_without_any_error_only_equal_scores_have_a_p_value():
    assert contrast_from([1.0], errors(0.0)).p_value is None
    assert contrast_from([0.0], errors(0.0)).p_value == 1.0


def test_the_error_is_never_below_that_of_examples_alone():
    # 0 over seeds, 4 over examples, 1 of both: 3 is below 4. The degrees of freedom are
    # 4 ** 2 / (4 ** 2 / 100 + 1 ** 2 / 100), by Satterthwaite.
    errors = CrossedErrors(np.array([4.0]), np.array([1.0]), 101, 101, 100)
    found = contrast_from([5.0, 5.0], errors)
    assert found.deciding.reach == pytest.approx(2.0 * stdtrit(16 / 0.17, 0.975))
    assert found.interval is None  # without a spread over seeds, there is no test
