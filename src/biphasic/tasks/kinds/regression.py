"""Sequence regression: one output on mean-pooled states, squared error, correlations.

Targets are standardized with the mean and standard deviation of the training split, so one range
of learning rates suits every scale and the head starts at the mean.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch.nn.functional as F  # noqa: N812 - its usual name
from numpy.typing import NDArray

from biphasic.errors import TrainingError
from biphasic.tasks.kinds.metrics import pearson, spearman
from biphasic.tasks.kinds.text_task import TextKind
from biphasic.tasks.records import RegressionTask
from biphasic.tasks.scores import SplitScores


def regression(task: RegressionTask) -> TextKind:
    """Return targets, loss and scoring of a regression task."""
    mean, deviation = standardisation(task)
    return TextKind(
        num_outputs=1,
        expected=lambda record: record.value,
        targets=lambda values: ((values - mean) / deviation).astype(np.float32),
        loss=lambda outputs, targets: F.mse_loss(outputs.squeeze(1), targets),
        score=partial(_score, mean=mean, deviation=deviation),
    )


def _score(
    ids: tuple[str, ...],
    outputs: NDArray[np.floating],
    values: NDArray[np.float64],
    *,
    mean: float,
    deviation: float,
) -> SplitScores:
    """Score each text by its negated squared error."""
    predicted = outputs[:, 0].astype(np.float64) * deviation + mean
    if not np.isfinite(predicted).all():
        raise TrainingError("a predicted value is not finite")
    metrics = {"spearman": spearman(values, predicted), "pearson": pearson(values, predicted)}
    columns = {"value": values, "predicted": predicted}
    return SplitScores(metrics, ids, -np.square(predicted - values), columns)


def standardisation(task: RegressionTask) -> tuple[float, float]:
    """Return mean and standard deviation of the training split's values."""
    learnt = np.array([record.value for record in task.splits["train"]])
    return float(learnt.mean()), float(learnt.std())
