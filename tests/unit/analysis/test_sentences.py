"""Sentences say what was found, and not more: all of them as one snapshot, by case."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from fake_study import ARMS, TASKS, FakeStudy
from made_scores import DATASET, compare_arms, made_scores, scores_with_examples

from biphasic.amounts import number
from biphasic.analysis.records import load_records
from biphasic.analysis.scores.source import study_scores
from biphasic.analysis.scores.table import DatasetInfo, ModelInfo, at_one_rate
from biphasic.analysis.statistics.compare import family_of
from biphasic.analysis.statistics.replicates import over_pretraining
from biphasic.analysis.statistics.variance import SpreadSource
from biphasic.analysis.tables.text import comparison_sentence, notes
from biphasic.analysis.words import coverage_sentence, selection_gains, selection_sentence, words
from snapshots import compare

FIVE = {"a": [1.0, 2.0, 3.0, 4.0, 5.0], "b": [0.0] * 5}
ZERO_SHOT = DatasetInfo("z", "ZS", "ndcg_at_10")


def pair(by_model, first="a", second="b", **options):
    return compare_arms(made_scores(by_model, **options), first, second, "d")


def described(found, labels=None):
    """Return all that is said of a comparison."""
    of_test = words().detectable(found), words().examples(found)
    return [comparison_sentence(found, labels), *filter(None, of_test)]


def rows(seed, num_seeds, num, shares):
    draw = np.random.default_rng(seed)
    return {name: draw.random((num_seeds, num)) < share for name, share in shares.items()}


def doubtful():
    """Clear over seeds, but not over test examples."""
    found = {"a": np.zeros((5, 40)), "b": np.zeros((5, 40))}
    found["a"][:, :11] = found["b"][:, 20:30] = found["a"][0, 12] = 1
    return compare_arms(scores_with_examples(found), "a", "b", "d")


def undecided():
    draw = np.random.default_rng(2)
    by_model = {name: draw.normal(50, 1, 5).tolist() for name in "abcd"}
    return family_of(made_scores(by_model), "d").with_best[0]


def selected(gains):
    """Return scores whose means differ by some gains from those at one rate for all seeds."""
    scores = made_scores({name: [50.0, 51.0] for name in gains})
    cells = {
        key: dataclasses.replace(
            score,
            at_one_rate={seed: value - gains[key[0]] for seed, value in score.by_seed.items()},
            num_rates=3,
        )
        for key, score in scores.cells.items()
    }
    return dataclasses.replace(scores, cells=cells)


def sentences():
    """Return sentences by case."""
    scores = scores_with_examples(rows(0, 3, 50, {"a": 0.9, "b": 0.1}))
    bare = dataclasses.replace(scores, examples=None)
    runs = dataclasses.replace(made_scores(FIVE), num_pretraining_runs=5)
    infos = {n: ModelInfo(n, n, identity=n, replicate_of="r") for n in "ab"}
    several = made_scores({**FIVE, "c": [1.0, 2.0]}, **infos)
    of_examples = scores_with_examples(
        rows(1, 1, 300, {"a": 0.9, "b": 0.5}), datasets=(dataclasses.replace(ZERO_SHOT, name="d"),)
    )
    only_zero, both = (
        made_scores(cells, datasets=datasets)
        for cells, datasets in (
            ({"a": [50.0], "b": [60.0]}, (ZERO_SHOT,)),
            ({("a", "d"): [50.0], ("a", "z"): [50.0]}, (DATASET, ZERO_SHOT)),
        )
    )
    # The first has the higher mean, and the lower score with each seed that both have.
    common = [pair({"a": {0: 50.0}, "b": {0: 51.0, 1: 40.0, **more}})
              for more in ({}, {2: 41.0, 3: 42.0})]  # fmt: skip
    sources = SpreadSource("test examples", 0.5, "2 models"), SpreadSource("examples", None, "x")
    return {
        "a clear difference": described(pair(FIVE), {"a": "Arm A"}),
        "below": described(pair(FIVE, "b", "a")),
        "less than 0.01": described(pair({"a": [50.004, 51.0, 52.0], "b": [50.0, 51.0, 52.0]})),
        "0.01": described(pair({"a": [50.03, 51.0, 52.0], "b": [50.0, 51.0, 52.0]})),
        "of a family": described(undecided()),
        "one pair": described(pair({"a": [1.0], "b": [0.5]})),
        "no pair": described(pair({"a": {0: 1.0}, "b": {1: 0.5}})),
        "no spread": described(pair({"a": [1.0, 2.0], "b": [0.0, 1.0]})),
        "common seeds": [text for one in common for text in described(one)],
        "over examples too": described(compare_arms(scores, "a", "b", "d")),
        "without examples": described(compare_arms(bare, "a", "b", "d")),
        "examples could reverse it": described(doubtful()),
        "zero-shot": described(compare_arms(of_examples, "a", "b", "d")),
        "wider than the scale": described(pair({"a": [40.0, 90.0], "b": [60.0, 61.0]})),
        "pretraining runs": [
            *described(compare_arms(runs, "a", "b", "d")),
            coverage_sentence("standard", 5, runs.unit),
        ],
        "coverage": [coverage_sentence(*each) for each in
                     (("paper", 5), ("standard", 5), ("paper", 1))],
        "pretraining": [words().pretraining(made_scores(FIVE)), words().pretraining(several)],
        "choosing a rate per seed": [
            selection_sentence(selected(gains), "d")
            for gains in ({"a": 1.0, "b": -0.5}, {"a": 0.0, "b": 0.0}, {"a": 0.25})
        ],
        "sources of spread": [*map(words().source, sources)],
        "notes on zero-shot alone": notes(only_zero),
        "notes on zero-shot and one seed": notes(both),
    }  # fmt: skip


def test_what_is_said_stays() -> None:
    parts = (f"{case}\n  " + "\n  ".join(said) for case, said in sentences().items())
    compare("sentences", "\n".join(parts) + "\n", Path("/nowhere"), is_made=True)


def test_no_sentence_says_more_than_was_found() -> None:
    said = {case: " ".join(texts) for case, texts in sentences().items()}
    for case in ("one pair", "no pair", "no spread"):
        assert "p =" not in said[case]
    for case, text in said.items():
        assert ("that both have" in text) == (case == "common seeds")
    assert "seed" not in said["notes on zero-shot alone"]
    assert number(-0.001) == "0.00"


def test_what_selection_adds_by_hand() -> None:
    # Means 3 and 0 with the best rate per seed, 2 and 0.5 with one: +1 and -0.5.
    scores = made_scores(FIVE)
    one = {"a": dict(enumerate([2.0] * 5)), "b": dict(enumerate([0.5] * 5))}
    cells = {
        key: dataclasses.replace(score, at_one_rate=one[key[0]], num_rates=3)
        for key, score in scores.cells.items()
    }
    scores = dataclasses.replace(scores, cells=cells)
    assert selection_gains(scores, "d") == {"a": pytest.approx(1.0), "b": pytest.approx(-0.5)}
    assert selection_sentence(made_scores(FIVE), "d") == ""
    # Where one rate stands for all, there is nothing to compare it with.
    assert selection_sentence(at_one_rate(scores), "d") == ""
    assert at_one_rate(scores).get("a", "d").num_rates == 1


def test_what_selection_adds_to_recipes_is_that_of_their_runs() -> None:
    models = {
        name: ModelInfo(name, name, identity=name, replicate_of="r", pretraining_seeds=(place,))
        for place, name in enumerate("ab")
    }
    scores = made_scores(FIVE, **models)
    cells = {
        key: dataclasses.replace(score, at_one_rate=dict.fromkeys(range(5), 2.0), num_rates=3)
        for key, score in scores.cells.items()
    }
    recipes = over_pretraining(dataclasses.replace(scores, cells=cells))
    assert selection_gains(recipes, "d") == {"a": pytest.approx(1.0), "b": pytest.approx(-2.0)}
    assert "by -2.00 at most (b)" in selection_sentence(recipes, "d")


def test_one_seed_has_no_other_rate_than_all_seeds(tmp_path) -> None:
    study = FakeStudy(steps=40, arms=ARMS[:3], tasks=TASKS[:1])
    for seeds, is_described in (((0,), False), ((0, 1, 2), True)):
        study.seeds = seeds
        scores = study_scores(load_records(*study.write(tmp_path / str(len(seeds)))))
        assert scores.get("mlm", "pydocs-sc").num_rates == 3
        assert bool(selection_sentence(scores, "pydocs-sc")) == is_described


def test_hostile_labels_are_cut_and_stay_text() -> None:
    models = tuple(map(ModelInfo, "ab", ["x" * 300, "<b>\x1b[31m"]))
    labels = dataclasses.replace(made_scores(FIVE), models=models).short_labels
    sentence = comparison_sentence(pair(FIVE), labels)
    assert len(sentence) < 300
    assert "\x1b" not in sentence
    assert "<b>" in sentence
