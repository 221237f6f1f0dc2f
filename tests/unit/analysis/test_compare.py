"""Comparisons of two models, by hand."""

import dataclasses
import math
from itertools import combinations

import numpy as np
import pytest
from made_scores import DATASET, compare_arms, example_reader, made_scores, scores_with_examples

from biphasic.analysis.estimate import Estimate
from biphasic.analysis.scores.table import DatasetInfo, Planned, Score, with_averages
from biphasic.analysis.statistics.compare import (
    corrected_pairs,
    family_of,
    indistinguishable,
    ranked,
)
from biphasic.analysis.statistics.contrast import contrast, holm
from biphasic.analysis.statistics.crossed import pair_errors
from biphasic.analysis.tables.text import comparison_lines
from biphasic.errors import DataError

HIGH = [80.0, 90.0, 70.0, 85.0, 75.0]


def shifted(values, *shifts):
    return [value - shift for value, shift in zip(values, shifts, strict=True)]


def test_a_paired_difference_by_hand():
    # Differences 1, 2, 3, 4, 5: mean 3, error sqrt(2.5 / 5) = 0.70711, t = 4.24264 with 4 degrees
    # of freedom: p = 0.01324 by tables; half-width 2.776445 * 0.70711.
    scores = made_scores({"a": HIGH, "b": shifted(HIGH, 1, 2, 3, 4, 5)})
    found = compare_arms(scores, "a", "b", "d")
    assert found.num_pairs == 5
    assert found.mean == pytest.approx(3.0)
    reach = 2.7764451 * math.sqrt(0.5)
    assert found.interval == pytest.approx((3 - reach, 3 + reach))
    assert found.p_value == pytest.approx(0.0132, abs=1e-4)
    assert found.p_adjusted == found.p_value
    assert (found.verdict, found.is_clear) == ("higher", True)
    # The spread between seeds is ten times the difference: without pairs nothing would be seen.
    assert compare_arms(scores, "b", "a", "d").verdict == "lower"


def test_the_paper_s_convention_does_not_change_the_test():
    by_model = {"a": HIGH, "b": shifted(HIGH, 1, 2, 3, 4, 5)}
    paper = compare_arms(made_scores(by_model, convention="paper"), "a", "b", "d")
    standard = compare_arms(made_scores(by_model), "a", "b", "d")
    assert (paper.p_value, paper.interval) == (standard.p_value, standard.interval)


def test_only_common_seeds_are_paired():
    scores = made_scores({"a": {0: 50.0, 1: 52.0, 7: 90.0}, "b": {0: 49.0, 1: 50.0, 8: 0.0}})
    found = compare_arms(scores, "a", "b", "d")
    assert found.num_pairs == 2
    assert found.mean == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("first", "second"), [([50.0], [40.0]), ([50.0, 51.0], [40.0, 41.0])], ids=["one", "equal"]
)
def test_without_a_spread_nothing_is_known(first, second):
    found = compare_arms(made_scores({"a": first, "b": second}), "a", "b", "d")
    assert found.verdict == "unknown"
    values = found.p_value, found.p_adjusted, found.p_adjusted_over_seeds
    assert values == (None, None, None)
    assert found.mean == pytest.approx(10.0)


def test_rounding_is_no_spread():
    # In floating point the differences are not quite alike: a t of 10 to the 14th, found "clear".
    first, second = [66.1, 66.3, 66.7], [56.1, 56.3, 56.7]
    assert len({a - b for a, b in zip(first, second, strict=True)}) > 1
    scores = made_scores({"a": first, "b": second})
    for found in (compare_arms(scores, "a", "b", "d"), *family_of(scores, "d").with_best):
        assert (found.verdict, found.p_value) == ("unknown", None)
    assert np.isnan(family_of(scores, "d").corrected.p_adjusted).all()


def test_p_values_of_all_pairs_are_those_of_each():
    draw = np.random.default_rng(4)
    by_model = {f"m{n}": dict(enumerate(draw.normal(50, 2, 5))) for n in range(6)}
    by_model["m1"].pop(2)
    by_model["m2"] = {3: 50.0}
    by_model["m3"] = {8: 50.0, 9: 51.0}
    scores = made_scores(by_model)
    order = ranked(scores, "d")
    pairs = list(combinations(order, 2))
    of_each = [compare_arms(scores, first, second, "d").p_value for first, second in pairs]
    expected = holm([np.nan if p is None else p for p in of_each], size=len(pairs))
    found = corrected_pairs(scores, order, scores.datasets[0], None, num_arms=len(order))
    assert found.p_adjusted == pytest.approx(expected, rel=1e-9, nan_ok=True)
    # One seed in common says nothing; none in common is judged unpaired.
    assert compare_arms(scores, "m0", "m2", "d").p_value is None
    assert compare_arms(scores, "m0", "m3", "d").num_pairs == 0


@pytest.mark.parametrize("num_clear", [0, 3, 40, 50])
def test_holm_sorts_only_values_that_stay_below_one(num_clear):
    draw = np.random.default_rng(1)
    values = np.concatenate([draw.uniform(0, 1e-9, num_clear), draw.uniform(size=50 - num_clear)])
    draw.shuffle(values)
    values[[4, 9]] = values[4]
    expected, highest = np.empty(50), 0.0
    for rank, place in enumerate(np.argsort(values, kind="stable")):
        highest = max(highest, (50 - rank) * values[place])
        expected[place] = min(highest, 1.0)
    assert holm(values).tolist() == expected.tolist()
    assert (
        holm([*values, np.nan], size=60)[:50].tolist() == holm([*values, *[1.0] * 10])[:50].tolist()
    )


def test_pairs_of_more_than_300_arms_are_not_tested_unless_planned():
    draw = np.random.default_rng(1)
    by_model = {f"m{n}": draw.normal(50 + 900 * (n == 7), 1, 5).tolist() for n in range(301)}
    planned = (Planned(("m7",), ("m8",), ("d",)),)
    scores = dataclasses.replace(made_scores(by_model), planned=planned)
    family, lines = family_of(scores, "d"), [*comparison_lines(scores)]
    assert family.with_best == ()
    assert [one.is_clear for one in family.of_plan] == [True]
    assert any("m7 is 90" in line and "m8" in line for line in lines)
    assert any("There are 301 arms" in line for line in lines)
    assert len(indistinguishable(scores, "d")) == 300
    assert not family_of(scores, "d", models=[*by_model][:300]).is_too_large


def test_every_pair_of_a_family_has_its_own_correction():
    draw = np.random.default_rng(4)
    scores = made_scores({f"m{n}": draw.normal(50 + 2 * n, 2, 5).tolist() for n in range(5)})
    family = family_of(scores, "d")
    pairs = list(combinations(family.order, 2))
    expected = holm([compare_arms(scores, *pair, "d").p_value for pair in pairs])
    assert len(set(expected)) > 5
    assert [family.compare(*pair).p_adjusted for pair in pairs] == pytest.approx(expected)


def test_a_chance_above_one_in_twenty_is_undecided():
    # Mean 1.75, error 0.70711, t = 2.4749 with 4 degrees of freedom: p = 0.0686.
    scores = made_scores({"a": HIGH, "b": shifted(HIGH, -0.25, 0.75, 1.75, 2.75, 3.75)})
    found = compare_arms(scores, "a", "b", "d")
    assert found.p_adjusted == pytest.approx(0.0686, abs=1e-4)
    assert found.verdict == "undecided"


def test_by_the_paper_s_convention_overlapping_intervals_are_no_difference():
    # Half-widths are 1.96 * 2 / sqrt(3) = 2.26: 77 reaches up to 79.26 and 75 to 77.26, and the
    # best one reaches down to 77.74.
    by_model = {"a": [78.0, 80.0, 82.0], "b": [75.0, 77.0, 79.0], "c": [73.0, 75.0, 77.0]}
    assert indistinguishable(made_scores(by_model, convention="paper"), "d") == {"b"}


def test_a_small_test_set_gives_an_average_few_degrees_of_freedom():
    # Differences of examples: 1, 2, 3 (error 1/3 of 1) and 400 of 1 or 3: their squared errors are
    # weighted by a quarter. Satterthwaite: (a + b)^2 / (a^2 / 2 + b^2 / 399).
    datasets = DatasetInfo("d", "ZS", "ndcg_at_10"), DatasetInfo("e", "ZS", "ndcg_at_10")
    rows = {"d": np.array([[1.0, 2, 3]]), "e": np.array([[1.0, 3] * 200])}
    matrices = {("a", name): of / 100 for name, of in rows.items()}
    matrices |= {("b", name): 0 * of for name, of in rows.items()}
    cells = {key: 100 * of.mean(axis=1) for key, of in matrices.items()}
    scores = made_scores(cells, datasets=datasets, reader=example_reader(matrices))
    scores = with_averages(scores)
    one, other = (of.var(ddof=1) / of.size / 4 for of in rows.values())
    freedom = (one + other) ** 2 / (one**2 / 2 + other**2 / 399)
    weights = {("a", "ZS Average"): 1.0, ("b", "ZS Average"): -1.0}
    assert contrast(scores, weights, blocks=()).tests[0].freedom == pytest.approx(freedom)
    pairs = pair_errors(scores, ["a", "b"], scores.dataset("ZS Average"))
    assert [*pairs.freedom] == pytest.approx([freedom])


def test_a_model_without_a_score_is_not_compared():
    scores = made_scores({"a": HIGH, "b": HIGH})
    cells = {**scores.cells, ("b", "d"): Score(None, {})}
    assert compare_arms(dataclasses.replace(scores, cells=cells), "a", "b", "d") is None
    assert compare_arms(scores, "a", "c", "d") is None
    with pytest.raises(DataError, match="no dataset 'e'"):
        compare_arms(scores, "a", "b", "e")


def test_the_best_is_compared_with_every_other_and_all_pairs_count():
    by_model = {
        "low": shifted(HIGH, 9, 10, 11, 9, 11),
        "best": HIGH,
        "middle": shifted(HIGH, 1, 2, 3, 4, 5),
    }
    scores = made_scores(by_model)
    assert ranked(scores, "d") == ["best", "middle", "low"]
    found = family_of(scores, "d").with_best
    assert [(c.first, c.second) for c in found] == [("best", "middle"), ("best", "low")]
    assert {c.family_size for c in found} == {3}
    # Of three p values, that of best and middle is the largest: it stays as it is.
    assert found[0].p_adjusted == pytest.approx(found[0].p_value)
    assert found[1].p_adjusted > found[1].p_value
    assert found[1].p_adjusted <= 3 * found[1].p_value
    assert len(family_of(scores, "d", models=["best", "low"]).with_best) == 1
    assert family_of(scores, "d", models=["low"]).with_best == ()


def test_a_correction_can_take_a_finding_back():
    draw = np.random.default_rng(0)
    by_model = {f"m{n}": [50 + value for value in draw.normal(0, 1, 5)] for n in range(12)}
    found = family_of(made_scores(by_model), "d").with_best
    assert any(c.p_value < 0.05 for c in found)
    assert not any(c.is_clear for c in found)


def test_welch_is_used_if_only_means_are_known():
    # Half-widths 1.96 and 3.92 by 1.96 errors: errors 1 and 2; of the difference sqrt(5).
    # Freedom 25 / (1 / 4 + 16 / 4) = 100 / 17; t = 6 / sqrt(5).
    from scipy.stats import t

    scores = made_scores({"a": HIGH, "b": HIGH}, convention="paper")
    cells = {("a", "d"): Score(Estimate(56.0, 1.96, 5)), ("b", "d"): Score(Estimate(50.0, 3.92, 5))}
    found = compare_arms(dataclasses.replace(scores, cells=cells), "a", "b", "d")
    assert (found.num_pairs, found.is_pooled) == (0, False)
    assert (found.mean, found.half_width) == (6.0, pytest.approx(1.96 * math.sqrt(5)))
    assert found.p_value == pytest.approx(2 * t.sf(6 / math.sqrt(5), 100 / 17))


def test_welch_agrees_with_scipy():
    from scipy.stats import ttest_ind

    first, second = HIGH, [60.0, 61.0, 58.0, 63.0]
    scores = made_scores({"a": first, "b": second})
    cells = {key: dataclasses.replace(s, by_seed=None) for key, s in scores.cells.items()}
    found = compare_arms(dataclasses.replace(scores, cells=cells), "a", "b", "d")
    expected = ttest_ind(first, second, equal_var=False)
    assert found.p_value == pytest.approx(expected.pvalue)
    interval = expected.confidence_interval()
    assert found.interval == pytest.approx(tuple(interval))


def test_by_the_standard_convention_a_clear_comparison_decides():
    by_model = {
        "best": HIGH,
        "near": shifted(HIGH, -1, 2, -1, 2, -1),
        "far": shifted(HIGH, 20, 21, 19, 20, 21),
    }
    assert indistinguishable(made_scores(by_model), "d") == {"near"}
    assert indistinguishable(made_scores({"a": [1.0], "b": [0.5]}), "d") == {"b"}


def examples_of(means, num_examples=400, *, seed=0, noise=0.0):
    """Draw right and wrong answers; models share what makes an example hard."""
    draw = np.random.default_rng(seed)
    hardness = draw.random(num_examples)
    return {
        model: np.stack([hardness < np.clip(share + noise * draw.normal(), 0, 1) for share in runs])
        for model, runs in means.items()
    }


def test_examples_can_make_a_difference_over_seeds_doubtful():
    # Five seeds agree that a is 1 point better, on four examples of 400: others may say otherwise.
    few = {"a": np.zeros((5, 400)), "b": np.zeros((5, 400))}
    few["a"][:, :204] = 1
    few["b"][:, :200] = 1
    few["a"][0, 204] = few["a"][1, 205] = 1  # or seeds would have no spread at all
    found = compare_arms(scores_with_examples(few), "a", "b", "d")
    assert found.p_over_seeds < 0.001
    assert found.interval[0] > 0
    # The same difference where models also disagree on many examples, as often either way.
    many = {model: rows.copy() for model, rows in few.items()}
    many["a"][:, 300:350] = 1
    many["b"][:, 350:400] = 1
    doubtful = compare_arms(scores_with_examples(many), "a", "b", "d")
    assert doubtful.mean == pytest.approx(found.mean)
    assert doubtful.interval[0] < 0 < doubtful.interval[1]
    assert doubtful.verdict == "undecided"
    without = compare_arms(scores_with_examples(many), "a", "b", "d", with_examples=False)
    assert without.verdict == "higher"
    assert without.num_examples == 0


def test_the_reason_for_missing_examples_is_reported():
    matrices = examples_of({"a": [0.8] * 3, "b": [0.7] * 3}, noise=0.05)
    scores = scores_with_examples(matrices)
    others = {"b": tuple(f"x{n}" for n in range(400))}
    for reader, reason in (
        (example_reader({"a": matrices["a"]}), "b: no examples"),
        (example_reader(matrices, ids=others), "different examples"),
        (example_reader({m: rows[:2] for m, rows in matrices.items()}), "no examples of seed 2"),
        (example_reader({m: rows[:, :1] for m, rows in matrices.items()}), "two examples"),
        (None, "no scores of single examples"),
    ):
        found = compare_arms(dataclasses.replace(scores, examples=reader), "a", "b", "d")
        assert found.num_examples == 0
        assert reason in found.missing


def test_zero_shot_scores_without_examples_are_not_tested():
    dataset = DatasetInfo("d", "ZS", "ndcg_at_10")
    scores = made_scores({"a": [60.0], "b": [50.0], "c": [40.0]}, datasets=(dataset,))
    assert [one.verdict for one in family_of(scores, "d").with_best] == ["unknown"] * 2


def test_zero_shot_scores_are_judged_by_examples_alone():
    matrices = examples_of({"a": [0.8], "b": [0.6], "c": [0.59]}, num_examples=500)
    scores = scores_with_examples(matrices, datasets=(DatasetInfo("d", "ZS", "ndcg_at_10"),))
    family = family_of(scores, "d")
    clear, *_ = family.with_best
    assert (clear.second, clear.verdict, clear.family_size) == ("b", "higher", 3)
    for found in (clear, family.compare("b", "c")):  # by Bonferroni: each by 3
        assert found.p_adjusted == pytest.approx(min(1.0, 3 * found.p_value))
    # A single seed of a fine-tuned task says nothing of other seeds, whatever the examples say.
    tuned = dataclasses.replace(scores, datasets=(DATASET,))
    assert compare_arms(tuned, "a", "b", "d").verdict == "unknown"


def test_an_average_is_compared_over_the_examples_of_all_its_datasets():
    datasets = (DatasetInfo("d", "SC", "accuracy"), DatasetInfo("e", "SC", "accuracy"))
    draw = np.random.default_rng(5)
    matrices = {
        (model, name): draw.random((4, size)) < share
        for model, share in (("a", 0.8), ("b", 0.7))
        for name, size in (("d", 300), ("e", 200))
    }
    scores = scores_with_examples(matrices, datasets=datasets)
    found = compare_arms(with_averages(scores), "a", "b", "SC Average")
    assert found.num_examples == 500
    assert found.num_pairs == 4
    single = compare_arms(scores, "a", "b", "d")
    # Two independent datasets: the error of the mean is smaller than that of one.
    assert found.example_error < single.example_error


def test_datasets_with_the_same_examples_do_not_count_them_twice():
    """Such as a task that is read with 16 and with 64 training examples."""
    datasets = [DatasetInfo(name, "SC", "accuracy", data="d") for name in ("d-16", "d-64")]
    by_model = examples_of({"a": [0.8, 0.79, 0.81], "b": [0.7, 0.71, 0.7]}, num_examples=200)
    matrices = {(model, d.name): rows for model, rows in by_model.items() for d in datasets}
    scores = with_averages(scores_with_examples(matrices, datasets=datasets))
    one, both = (compare_arms(scores, "a", "b", name) for name in ("d-16", "SC Average"))
    assert both.num_examples == one.num_examples == 200
    assert both.p_adjusted == pytest.approx(one.p_adjusted)
    assert both.p_value == pytest.approx(one.p_value)
    assert both.interval == pytest.approx(one.interval)
