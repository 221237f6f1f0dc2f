"""Cells that look certain and are no results."""

import dataclasses

import numpy as np
import pytest
from made_scores import example_reader, made_scores

from biphasic.analysis.estimate import Estimate
from biphasic.analysis.scores.examples import ExampleScores, metric_examples
from biphasic.analysis.scores.source import paper_scores
from biphasic.analysis.scores.table import DatasetInfo, Score
from biphasic.analysis.statistics.doubts import cell_doubt, doubt, doubt_notes
from biphasic.analysis.tables.text import notes
from biphasic.facts import metric_facts

ENTITIES = DatasetInfo("ner", "TC", "entity_f1")


@pytest.mark.parametrize(
    ("found", "metric", "text"),
    [
        (Estimate(0.0, 0.0, 3), "entity_f1", "no entity was right"),
        (Estimate(0.0, 0.0, 3), "f1", "every seed scores 0"),
        (Estimate(50.0, 0.0, 2), "accuracy", "every seed has the same score"),
        (Estimate(62.0, 63.0, 2), "accuracy", "the interval is wider than the scale"),
        (Estimate(62.0, 63.0, 2), "pearson", ""),
        (Estimate(62.0, 11.0, 2), "accuracy", ""),
        (Estimate(0.0, None, 1), "entity_f1", ""),
        (None, "f1", ""),
    ],
)
def test_what_makes_a_score_no_result(found, metric, text):
    assert doubt(found, metric_facts(metric)) == text


def silent(predicted):
    """Return a reader of taggers, each of which predicts so many entities, all of them wrong."""

    def read(model, dataset):
        columns = {"num_entities": [1, 2], "num_predicted": [predicted, 0], "num_right": [0, 0]}
        run = metric_examples("entity_f1", columns)
        return ExampleScores(("a", "b"), {0: run, 1: run})

    return read


@pytest.mark.parametrize(
    ("predicted", "text"), [(0, "no entity was predicted"), (3, "no entity was right")]
)
def test_an_f1_of_0_reports_whether_anything_was_predicted(predicted, text):
    scores = made_scores({"a": [0.0, 0.0]}, datasets=(ENTITIES,), reader=silent(predicted))
    assert cell_doubt(scores, "a", ENTITIES) == text
    assert f"No result, as {text}: a on ner." in notes(scores)


def test_a_single_predicted_label_is_reported():
    scores = made_scores({"a": [0.0, 0.0]}, datasets=(DatasetInfo("d", "SC", "matthews"),))
    run = metric_examples("matthews", {"label": ["x", "y"], "predicted": ["x", "x"]})

    def read(*_):
        return ExampleScores(("1", "2"), {0: run, 1: run})

    scores = dataclasses.replace(scores, examples=read)
    assert cell_doubt(scores, "a", scores.datasets[0]) == "every example got the same label"


def test_scores_with_a_spread_and_published_scores_are_not_doubted():
    rows = {"a": np.eye(3, 50), "b": np.ones((3, 50)) - np.tri(3, 50)}
    by_model = {name: 100 * found.mean(axis=1) + [0, 1, 2] for name, found in rows.items()}
    assert doubt_notes(made_scores(by_model, reader=example_reader(rows))) == []
    assert doubt_notes(paper_scores()) == []
    unknown = made_scores({"a": [1.0]})
    unknown.cells["a", "d"] = Score(None)
    assert doubt_notes(unknown) == []


def test_many_places_are_counted():
    scores = made_scores({f"m{n}": [50.0, 50.0] for n in range(8)})
    [note] = doubt_notes(scores)
    assert note.endswith("m4 on d and 3 others.")
