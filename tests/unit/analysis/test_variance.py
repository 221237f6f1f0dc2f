"""The split of variance against data drawn with known sources, and by hand."""

import dataclasses
import math

import numpy as np
import pytest
from made_scores import example_reader, made_scores, scores_with_examples

from biphasic.analysis.scores.table import DatasetInfo, ModelInfo, with_averages
from biphasic.analysis.statistics.variance import variance_split
from biphasic.errors import DataError


def with_rates(scores, at_one_rate, num_rates=2):
    cells = {
        key: dataclasses.replace(
            score, at_one_rate=dict(enumerate(at_one_rate[key[0]])), num_rates=num_rates
        )
        for key, score in scores.cells.items()
    }
    return dataclasses.replace(scores, cells=cells)


def test_seeds_and_rates_by_hand():
    # At one rate 1, 2, 3 (variance 1) and 1, 3, 5 (4): mean 2.5. Chosen per seed 0, 2, 4 (4) and
    # 1, 4, 7 (9): mean 6.5, 4 more.
    scores = made_scores({"a": [0.0, 2.0, 4.0], "b": [1.0, 4.0, 7.0]})
    split = variance_split(with_rates(scores, {"a": [1, 2, 3], "b": [1, 3, 5]}), "d")
    assert split.finetuning.deviation == pytest.approx(math.sqrt(2.5))
    assert split.rate_choice.deviation == pytest.approx(2.0)
    assert split.pretraining.deviation is None
    assert split.pretraining.basis == "each model was pretrained once"
    assert split.examples.deviation is None
    assert [source.name for source in split] == [
        "pretraining seed", "fine-tuning seed", "choice of the learning rate", "test examples"
    ]  # fmt: skip


def test_a_choice_that_reduces_variance_adds_nothing_and_is_reported():
    scores = made_scores({"a": [1.0, 2.0, 3.0]})
    choice = variance_split(with_rates(scores, {"a": [0, 2, 4]}), "d").rate_choice
    assert choice.deviation == 0.0
    assert "less, not more" in choice.basis


def test_without_a_choice_or_seeds_nothing_is_claimed():
    one_rate = with_rates(made_scores({"a": [1.0, 2.0]}), {"a": [1, 2]}, num_rates=1)
    assert variance_split(one_rate, "d").rate_choice.basis == "one learning rate only"
    one_seed = with_rates(made_scores({"a": [1.0]}), {"a": [1]})
    split = variance_split(one_seed, "d")
    assert split.finetuning.deviation is None
    assert split.rate_choice.deviation is None
    with pytest.raises(DataError, match="no dataset 'e'"):
        variance_split(one_seed, "e")


def replicates(names, recipe="r"):
    return {name: ModelInfo(name, name, identity=name, replicate_of=recipe) for name in names}


def test_replicates_tell_the_luck_of_pretraining_by_hand():
    # Means 10, 14, 12: variance 4. Each mean of two seeds 2 apart has variance 2 / 2 = 1.
    runs = {"a": [9.0, 11.0], "b": [13.0, 15.0], "c": [11.0, 13.0]}
    found = variance_split(made_scores(runs, **replicates(runs)), "d").pretraining
    assert found.deviation == pytest.approx(math.sqrt(3))
    assert found.basis == "3 pretraining runs of 1 recipe"


def test_replicates_no_further_apart_than_their_seeds_add_nothing():
    runs = {"a": [0.0, 20.0], "b": [1.0, 21.0]}
    assert variance_split(made_scores(runs, **replicates(runs)), "d").pretraining.deviation == 0


def test_known_sources_are_estimated():
    draw = np.random.default_rng(8)
    spread = {"pretraining": 1.0, "finetuning": 0.5}
    runs, infos = {}, {}
    for recipe in range(40):
        for copy in range(3):
            name = f"m{recipe}-{copy}"
            mean = 70 + spread["pretraining"] * draw.normal()
            runs[name] = (mean + spread["finetuning"] * draw.normal(size=5)).tolist()
            infos |= replicates([name], f"r{recipe}")
    scores = with_rates(made_scores(runs, **infos), runs)
    split = variance_split(scores, "d")
    assert split.pretraining.deviation == pytest.approx(1.0, rel=0.15)
    assert split.finetuning.deviation == pytest.approx(0.5, rel=0.1)
    assert split.rate_choice.deviation == 0.0


def test_test_examples_spread_as_the_error_of_a_share():
    # 400 answers, 300 right in every seed: sqrt(0.75 * 0.25 / 400) = 2.165 points.
    rows = np.zeros((3, 400))
    rows[:, :300] = 1
    scores = scores_with_examples({"a": rows, "b": rows})
    examples = variance_split(scores, "d").examples
    assert examples.deviation == pytest.approx(2.165, rel=0.05)
    assert examples.basis == "2 models"
    without = dataclasses.replace(scores, examples=None)
    assert variance_split(without, "d").examples.deviation is None
    lost = variance_split(dataclasses.replace(scores, examples=example_reader({"a": rows})), "d")
    assert lost.examples.basis == "1 model; 1 without: b: no examples"


def test_each_reason_for_lost_examples_counts():
    rows = np.tile([0.0, 1.0], (2, 10))
    scores = scores_with_examples({"a": rows, "b": rows, "c": rows})
    split = variance_split(
        dataclasses.replace(scores, examples=example_reader({"a": rows[:, :1]})), "d"
    )
    assert split.examples.deviation is None
    assert split.examples.basis.startswith("d: a spread needs two examples or more")
    assert split.examples.basis.endswith("and 2 more")


# Two datasets that err apart: 2.165 / sqrt(2). With the same examples they err together.
@pytest.mark.parametrize(
    ("data", "expected"), [(("", ""), 1.531), (("x", "x"), 2.165), (("x", "x", "y"), 1.531)]
)
def test_an_average_has_the_examples_of_all_its_datasets_once(data, expected):
    datasets = [DatasetInfo(f"d{n}", "SC", "accuracy", data=of) for n, of in enumerate(data)]
    rows = np.zeros((2, 400))
    rows[:, :300] = 1
    scores = scores_with_examples({("a", d.name): rows for d in datasets}, datasets=datasets)
    examples = variance_split(with_averages(scores), "SC Average").examples
    assert examples.deviation == pytest.approx(expected, rel=0.01)


def test_the_spread_of_zero_shot_runs_has_no_part_of_fine_tuning():
    runs = {"a": [9.0], "b": [13.0], "c": [11.0]}
    for task, note in (("ZS", ""), ("SC", "; it includes that of the fine-tuning seed")):
        datasets = (DatasetInfo("d", task, "accuracy"),)
        found = variance_split(made_scores(runs, datasets=datasets, **replicates(runs)), "d")
        assert found.pretraining.deviation == pytest.approx(2.0)
        assert found.pretraining.basis == f"3 pretraining runs of 1 recipe{note}"


def test_zero_shot_has_no_fine_tuning():
    split = variance_split(made_scores({"a": [1.0]}, datasets=(DatasetInfo("d", "ZS", "x"),)), "d")
    assert split.finetuning.basis == split.rate_choice.basis == "zero-shot: nothing is fine-tuned"
