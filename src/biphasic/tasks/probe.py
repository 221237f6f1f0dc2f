"""Probes: a linear model on the states of a frozen encoder."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression, Ridge
from torch import nn

from biphasic.tasks.encoding import Encoder
from biphasic.tasks.kinds.kind import EncodedTask, SplitScores

# Inverse strengths of the penalty, as scikit-learn's C; a ridge has 1 / C. The strongest comes
# first: it wins ties.
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
_MAX_ITERATIONS = 10_000
# Output of a class that training examples lack. The largest of the other outputs is at least 0: a
# softmax model without intercept penalty is centred, and of two classes one has output 0.
_NEVER = -50.0
Linear = tuple[NDArray[np.float64], NDArray[np.float64]]  # [num_outputs, width], [num_outputs]


def fit_probe(
    task: EncodedTask, encoder: Encoder, head: nn.Module, chosen: NDArray[np.int64]
) -> dict[str, SplitScores]:
    """Fit a linear head on the `chosen` training examples; return validation and test scores.

    States are standardised by the training examples. The strength of the penalty with the best
    validation score is taken.
    """
    states, targets = task.frozen(encoder, "train", chosen)
    known = np.ones(len(targets), bool) if targets.ndim > 1 else targets != -1
    if targets.dtype.kind == "f":
        known[:] = True
    read = states.cpu().double().numpy()[known]
    mean, deviation = read.mean(axis=0), read.std(axis=0)
    deviation[deviation == 0] = 1.0
    read = (read - mean) / deviation
    held = {split: task.frozen(encoder, split)[0] for split in ("validation", "test")}
    best: tuple[float, Linear, SplitScores] | None = None
    for strength in STRENGTHS:
        weight, bias = _fit(read, targets[known], task.num_outputs, strength)
        weight = weight / deviation
        linear = weight, bias - weight @ mean
        _load(head, linear)
        scores = task.score_outputs("validation", _outputs(head, held["validation"]))
        score = scores.metrics[task.info.metric]
        if best is None or score > best[0]:
            best = score, linear, scores
    assert best is not None  # noqa: S101 - there are strengths
    _, linear, validation = best
    _load(head, linear)
    test = task.score_outputs("test", _outputs(head, held["test"]))
    return {"validation": validation, "test": test}


def _outputs(head: nn.Module, states: torch.Tensor) -> NDArray[Any]:
    device = next(head.parameters()).device
    return head(states.to(device)).cpu().numpy()


def _load(head: nn.Module, linear: Linear) -> None:
    weight, bias = (torch.from_numpy(each.astype(np.float32)) for each in linear)
    head.load_state_dict({"weight": weight, "bias": bias})


def _fit(states: NDArray[Any], targets: NDArray[Any], width: int, strength: float) -> Linear:
    """Return the linear model of targets: classes, a truth value per label, or a number."""
    if targets.dtype.kind == "f":
        ridge = Ridge(alpha=1 / strength).fit(states, targets)
        return np.atleast_2d(ridge.coef_), np.atleast_1d(ridge.intercept_)
    if targets.ndim == 1:
        return _fit_classes(states, targets, width, strength)
    labels = [_fit_classes(states, each.astype(int), 2, strength) for each in targets.T]
    # The output of a label is its log odds.
    weights, biases = (np.stack(each) for each in zip(*labels, strict=True))
    return weights[:, 1] - weights[:, 0], biases[:, 1] - biases[:, 0]


def _fit_classes(
    states: NDArray[Any], targets: NDArray[Any], width: int, strength: float
) -> Linear:
    weight, bias = np.zeros((width, states.shape[1])), np.full(width, _NEVER)
    classes = np.unique(targets)
    if len(classes) == 1:
        bias[classes] = 0.0
        return weight, bias
    model = LogisticRegression(C=strength, max_iter=_MAX_ITERATIONS).fit(states, targets)
    if len(classes) == 2:  # scikit-learn has the log odds of the second class alone
        bias[classes[0]] = 0.0
        classes = classes[1:]
    weight[classes], bias[classes] = model.coef_, model.intercept_
    return weight, bias
