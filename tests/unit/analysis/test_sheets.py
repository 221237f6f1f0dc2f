"""Which models stand together in a table, what is marked, and what its notes say."""

from dataclasses import replace

import numpy as np
import pytest
from grid_scores import DATASETS, grid_scores, model
from made_scores import scores_with_examples

from biphasic.analysis.estimate import Estimate
from biphasic.analysis.scores.reference import alike_datasets, reference_values
from biphasic.analysis.scores.source import paper_scores
from biphasic.analysis.scores.table import DatasetInfo, Score, Scores
from biphasic.analysis.tables.markup import make_sheets, marks
from biphasic.analysis.text import score_text

ONE = DATASETS[:1]


def table(*rows, convention="paper", datasets=ONE):
    """Return a table of models a, b, ... with the given (mean, half-width)."""
    models = [model(chr(97 + index), "small", 0, 100) for index in range(len(rows))]
    cells = {
        (found.name, dataset.name): Score(Estimate(*row, 5) if row else None)
        for found, row in zip(models, rows, strict=True) for dataset in datasets
    }  # fmt: skip
    return Scores("Made up", convention, tuple(models), datasets, cells)


def marked(scores):
    return marks(scores, scores.datasets[0], scores.models)


def test_intervals_that_touch_are_level_under_the_papers_convention():
    # 90 - 0.5 = 89.5 is where b's interval ends and where c's begins to fall short.
    found = marked(table((90.0, 0.5), (89.0, 0.5), (88.9, 0.5)))
    assert found == {"a": "best", "b": "level"}


def test_equal_means_are_best_together_and_a_lone_model_is_nothing():
    assert marked(table((90.0, 0.1), (90.0, 0.2), (80.0, 0.1))) == {"a": "best", "b": "best"}
    assert marked(table((90.0, 0.1), None)) == {}
    assert marked(table(None, None)) == {}
    assert marked(table((90.0, 0.1), (90.0, 0.2))) == {}


def test_without_an_interval_no_difference_is_clear():
    assert marked(table((90.0, 0.1), (50.0, None))) == {"a": "best", "b": "level"}


def test_the_standard_convention_compares_seed_by_seed():
    """b is always 0.2 below a, give or take 0.01: seeds differ more than models do."""
    seeds = [80.0, 82.0, 84.0, 86.0, 88.0]
    small = [0.01, -0.01, 0.0, 0.01, -0.01]
    by_seed = {
        "a": dict(enumerate(seeds)),
        "b": {i: score - 0.2 + small[i] for i, score in enumerate(seeds)},
        "c": {i: score - 0.2 + 200 * small[i] for i, score in enumerate(seeds)},
    }
    scores = table((84.0, 3.9), (83.8, 3.9), (83.8, 3.9), convention="standard")
    cells = {
        (name, dataset): replace(score, by_seed=by_seed[name])
        for (name, dataset), score in scores.cells.items()
    }
    assert marked(replace(scores, cells=cells)) == {"a": "best", "c": "level"}
    # The same numbers by their intervals alone.
    assert marked(replace(scores, cells=cells, convention="paper")) == {
        "a": "best", "b": "level", "c": "level",
    }  # fmt: skip


def test_models_are_compared_at_one_size_and_length():
    names = {sheet.name: sheet for sheet in make_sheets(paper_scores())}
    assert len(names) == 16
    blocks = {name: [len(block) for block in sheet.blocks] for name, sheet in names.items()}
    assert blocks["base-sc"] == [5, 5, 5]
    assert blocks["data-efficiency-qa"] == [2] * 6
    assert blocks["pfs-ir"] == [5, 5, 5]
    assert blocks["cpt-tc"] == [2] * 4
    for sheet in names.values():
        for block in sheet.blocks:
            assert len({(each.size, each.total_steps) for each in block}) == 1


def test_sizes_are_blocks_if_lengths_would_leave_single_models():
    models = [model("u", "small", 0, 0), model("a", "small", 0, 100), model("b", "small", 0, 200),
              model("c", "large", 0, 100), model("d", "large", 0, 300)]  # fmt: skip
    [sheet] = make_sheets(grid_scores(models, datasets=ONE))
    names = [[each.name for each in block] for block in sheet.blocks]
    assert names == [["u"], ["a", "b"], ["c", "d"]]
    [sheet] = make_sheets(grid_scores(models[:3], datasets=ONE))
    assert [len(block) for block in sheet.blocks] == [3]
    assert not any("within a block" in note for note in sheet.notes)


def test_notes_say_what_numbers_are_and_what_marks_mean():
    [paper, *_] = make_sheets(paper_scores())
    text = " ".join(paper.notes)
    assert "42,000 steps" in text
    assert "about 88 %" in text
    assert "intervals overlap" in text
    [own, *_] = make_sheets(grid_scores())
    assert "test over seeds, and over test examples" in " ".join(own.notes)


def test_groups_with_equal_names_get_distinct_names():
    models = [replace(model(f"m{i}", "small", 0, 9), group=group)
              for i, group in enumerate(["A b", "a-b", "日本", "本日"])]  # fmt: skip
    names = [sheet.name for sheet in make_sheets(grid_scores(models, datasets=ONE))]
    assert names == ["a-b-sc", "a-b-sc-2", "sc", "sc-2"]


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        (None, "–"), (Estimate(87.85, 0.13, 5), "87.85 (0.13)"),
        (Estimate(0.0, 0.0, 5), "0.00 (0.00)"),
        (Estimate(50.071, None, 1), "50.07"), (Estimate(-0.001, 0.5, 2), "0.00 (0.50)"),
    ],
)  # fmt: skip
def test_scores_are_written_as_the_paper_does(estimate, text):
    assert score_text(estimate) == text


def catalogue_scores():
    """Return a study at 610M on the public tasks, with two models that the paper has."""
    datasets = (
        DatasetInfo("sst2", "SC", "accuracy"), DatasetInfo("mnli", "SC", "accuracy"),
        DatasetInfo("qqp", "SC", "accuracy"), DatasetInfo("SC Average", "SC", "accuracy", True),
        DatasetInfo("conll2003", "TC", "entity_f1"), DatasetInfo("squad_v2", "QA", "f1"),
        DatasetInfo("QA Average", "QA", "f1", True), DatasetInfo("msmarco", "IR", "ndcg_at_10"),
    )  # fmt: skip
    models = [
        model("a", "610M", 0, 42_000), model("b", "610m", 10_000, 32_000),
        model("c", "610M", 42_000, 22_000, start="CLM", continued_steps=22_000),
        model("d", "610M", 0, 41_000), model("e", "nano", 0, 42_000),
    ]  # fmt: skip
    return grid_scores(models, datasets=datasets)


def test_the_papers_value_is_looked_up_by_factors_dataset_and_metric():
    values = reference_values(catalogue_scores(), paper_scores())
    # 610M, 25 % CLM, 42,000 steps: 87.85 (0.13) on average over SST-2, QQP and MNLI.
    assert score_text(values["b", "SC Average"]) == "87.85 (0.13)"
    assert score_text(values["a", "mnli"]) == "82.59 (0.16)"
    assert score_text(values["c", "sst2"]) == "93.62 (0.33)"
    assert ("a", "msmarco") in values
    # Entity F1 is another metric than the paper's; 41,000 steps and `nano` other models.
    assert ("a", "conll2003") not in values
    assert ("d", "mnli") not in values
    assert ("e", "mnli") not in values


def test_an_average_is_the_same_only_over_the_same_datasets():
    found = alike_datasets(catalogue_scores(), paper_scores())
    assert found["SC Average"].name == "SC Average"
    assert "QA Average" not in found
    assert found["squad_v2"].name == "SQuAD-v2"


def test_the_papers_value_is_in_the_table():
    sheets = make_sheets(catalogue_scores(), reference=paper_scores())
    [sheet] = [sheet for sheet in sheets if sheet.name == "sc"]
    assert sheet.text("b", "SC Average", str, "{}").endswith("[paper: 87.85 (0.13)]")
    assert any("arXiv:2507.00994" in note for note in sheet.notes)


def test_other_test_examples_can_take_a_mark_back():
    """Seeds alone would tell b from a; two test examples of forty say little."""
    rows = {"a": np.zeros((5, 40)), "b": np.zeros((5, 40))}
    rows["a"][:, :11] = 1
    rows["b"][:, 20:30] = 1
    rows["a"][0, 12] = 1
    scores = scores_with_examples(rows)
    assert marked(replace(scores, examples=None)) == {"a": "best"}
    assert marked(scores) == {"a": "best", "b": "level"}
