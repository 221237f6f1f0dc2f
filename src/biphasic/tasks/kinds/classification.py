"""Sequence classification: a linear head on mean-pooled states, cross-entropy, accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch.nn.functional as F  # noqa: N812 - its usual name
from numpy.typing import NDArray

from biphasic.tasks.kinds.metrics import accuracy, macro_f1, matthews
from biphasic.tasks.kinds.text_task import TextKind
from biphasic.tasks.records import ClassificationTask
from biphasic.tasks.scores import SplitScores


def classification(task: ClassificationTask) -> TextKind:
    """Return targets, loss and scoring of a classification task."""
    return TextKind(
        num_outputs=len(task.labels),
        expected=lambda record: record.label,
        targets=lambda labels: labels,
        loss=F.cross_entropy,
        score=partial(_score, names=task.labels),
    )


def _score(
    ids: tuple[str, ...],
    logits: NDArray[np.floating],
    labels: NDArray[np.int64],
    *,
    names: Sequence[str],
) -> SplitScores:
    """Score 1 for each correct label."""
    # numpy returns the first of equal maxima; torch does not guarantee which.
    predicted = logits.argmax(axis=1)
    metrics = {
        "accuracy": accuracy(labels, predicted),
        "macro_f1": macro_f1(labels, predicted),
        "matthews": matthews(labels, predicted),
    }
    correct = predicted == labels
    columns = {
        "correct": correct,
        "label": [names[label] for label in labels.tolist()],
        "predicted": [names[label] for label in predicted.tolist()],
    }
    return SplitScores(metrics, ids, correct.astype(np.float64), columns)
