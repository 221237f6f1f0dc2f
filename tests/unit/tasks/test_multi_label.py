"""Multi-label classification: metrics, and people's files."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score

from biphasic.analysis.scores.examples import metric_examples
from biphasic.tasks.kinds.registry import KINDS
from biphasic.tasks.metrics import multi_label_scores


@pytest.mark.parametrize("seed", range(4))
def test_metrics_are_those_of_scikit_learn_and_of_single_examples(seed):
    draw = np.random.default_rng(seed)
    expected, predicted = draw.random((2, 40, 5)) < draw.choice([0.02, 0.3, 0.7])
    expected[0, 0] = True
    scores = multi_label_scores(expected, predicted)
    assert scores["micro_f1"] == f1_score(expected, predicted, average="micro", zero_division=0)
    used = (expected | predicted).any(axis=0)
    assert scores["macro_f1"] == f1_score(
        expected[:, used], predicted[:, used], average="macro", zero_division=0
    )
    assert scores["subset_accuracy"] == accuracy_score(expected, predicted)
    columns = {
        "correct": (expected == predicted).all(axis=1),
        "label": [[str(n) for n in np.flatnonzero(row)] for row in expected],
        "predicted": [[str(n) for n in np.flatnonzero(row)] for row in predicted],
        "num_labels": expected.sum(axis=1),
        "num_predicted": predicted.sum(axis=1),
        "num_right": (expected & predicted).sum(axis=1),
    }
    for metric in KINDS["ml"].facts.metric_keys:
        assert metric_examples(metric, columns).value == pytest.approx(scores[metric])


def test_no_label_at_all_scores_zero():
    none = np.zeros((3, 2), dtype=np.bool_)
    expected = {"micro_f1": 0.0, "macro_f1": 0.0, "subset_accuracy": 1.0}
    assert multi_label_scores(none, none) == expected
    columns = {"label": [[], [], []], "predicted": [[], [], []]}
    assert metric_examples("macro_f1", columns).value == 0.0
