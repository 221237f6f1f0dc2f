"""Multi-label classification: a linear head on mean-pooled states, one sigmoid per label.

A label is predicted if its probability is above one half.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch.nn.functional as F  # noqa: N812 - its usual name
from numpy.typing import NDArray

from biphasic.tasks.kinds.metrics import multi_label_scores
from biphasic.tasks.kinds.text_task import TextKind
from biphasic.tasks.records import MultiLabelTask
from biphasic.tasks.scores import SplitScores


def multi_label(task: MultiLabelTask) -> TextKind:
    """Return targets, loss and scoring of a multi-label task."""
    numbers = np.arange(len(task.labels))
    return TextKind(
        num_outputs=len(task.labels),
        expected=lambda record: np.isin(numbers, record.labels),
        targets=lambda holds: holds.astype(np.float32),
        loss=F.binary_cross_entropy_with_logits,
        score=partial(_score, names=task.labels),
    )


def predicted_labels(logits: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Return which labels are predicted; both arrays are [num_texts, num_labels]."""
    return logits > 0


def _score(
    ids: tuple[str, ...],
    logits: NDArray[np.floating],
    holds: NDArray[np.bool_],
    *,
    names: Sequence[str],
) -> SplitScores:
    """Score 1 for each text whose labels are all correct."""
    predicted = predicted_labels(logits)
    correct = (predicted == holds).all(axis=1)
    columns = {
        "correct": correct,
        "label": _named(holds, names),
        "predicted": _named(predicted, names),
        "num_labels": holds.sum(axis=1),
        "num_predicted": predicted.sum(axis=1),
        "num_right": (predicted & holds).sum(axis=1),
    }
    return SplitScores(
        multi_label_scores(holds, predicted), ids, correct.astype(np.float64), columns
    )


def _named(holds: NDArray[np.bool_], names: Sequence[str]) -> list[list[str]]:
    return [[names[label] for label in np.flatnonzero(row).tolist()] for row in holds]
