"""Probes: a linear model on the states of a frozen encoder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression, Ridge
from torch import nn

from biphasic.errors import ConfigError
from biphasic.records import ProbeRecord
from biphasic.tasks.encoding import Encoder
from biphasic.tasks.kinds.kind import Learner, SplitScores
from biphasic.tasks.protocol import Layer

# Inverse strengths of the penalty, as scikit-learn's C; a ridge has 1 / C. The strongest comes
# first: it wins ties.
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
_MAX_ITERATIONS = 10_000
# All layers are read in one pass over the texts, unless their states take more memory (2 GiB).
_MOST_VALUES = 2**29
# Output of a class that training examples lack. The largest of the other outputs is at least 0: a
# softmax model without intercept penalty is centred, and of two classes one has output 0.
# exp(-50) is 2e-22, which adds nothing to a sum of probabilities in fp32, and is finite.
_NEVER = -50.0
Linear = tuple[NDArray[np.float64], NDArray[np.float64]]  # [num_outputs, width], [num_outputs]


@dataclass(frozen=True, slots=True)
class _Fitted:
    """The linear model with the best validation score."""

    score: float
    strength: float
    linear: Linear
    scores: SplitScores


def fit_probe(
    task: Learner, encoder: Encoder, head: nn.Module, chosen: NDArray[np.int64], layer: Layer
) -> tuple[dict[str, SplitScores], ProbeRecord]:
    """Fit a linear head on the `chosen` training examples; return validation and test scores.

    States are standardised by the training examples. The strength of the penalty, and with
    `layer: best` the layer, with the best validation score are taken; of equals the first.
    """
    targets = task.targets("train", chosen)
    best: tuple[_Fitted, Encoder] | None = None
    by_layer = []
    for reader in _readers(encoder, layer, task.states_read * len(targets)):
        states = task.frozen(reader, "train", chosen)
        held = task.frozen(reader, "validation")
        for place in range(states.shape[1]):
            fitted = _fit_best(task, head, states[:, place], targets, held[:, place])
            by_layer.append(fitted.score)
            # `>`, not `>=`: of equal layers the first wins.
            if best is None or fitted.score > best[0].score:
                best = fitted, replace(reader, layers=reader.layers[place : place + 1])
    assert best is not None  # noqa: S101 - there are layers
    fitted, reader = best
    _load(head, fitted.linear)
    # Only now, with strength and layer chosen: test scores can choose nothing.
    test = task.score_outputs("test", _outputs(head, task.frozen(reader, "test")[:, 0]))
    record = ProbeRecord(
        strength=fitted.strength,
        layer=reader.layers[0] if reader.layers else None,
        by_layer=by_layer if layer == "best" else [],
    )
    return {"validation": fitted.scores, "test": test}, record


def _readers(encoder: Encoder, layer: Layer, num_states: int) -> Iterator[Encoder]:
    """Yield encoders that read the layers of a probe, several in one pass."""
    if layer is None:
        yield encoder
        return
    last = encoder.model.config.num_hidden_layers
    if layer != "best" and layer > last:
        raise ConfigError(f"layer: {layer}: the encoder has {last} layers")
    layers = range(last + 1) if layer == "best" else [layer]
    width = encoder.model.config.hidden_size
    at_once = max(1, _MOST_VALUES // (num_states * width))
    for first in range(0, len(layers), at_once):
        yield replace(encoder, layers=tuple(layers[first : first + at_once]))


def _fit_best(
    task: Learner,
    head: nn.Module,
    states: torch.Tensor,
    targets: NDArray[Any],
    held: torch.Tensor,
) -> _Fitted:
    """Fit a linear model with each strength, and return the one with the best validation score."""
    known = np.ones(len(targets), bool) if targets.ndim > 1 else targets != -1
    # A number of a regression may be -1, which stands for a lost word in labels only.
    if targets.dtype.kind == "f":
        known[:] = True
    # fp64, in which scikit-learn then fits. Given fp32, it would compute in fp32.
    read = states.cpu().double().numpy()[known]
    mean, deviation = read.mean(axis=0), read.std(axis=0)
    # A constant value says nothing, and must not become NaN.
    deviation[deviation == 0] = 1.0
    read = (read - mean) / deviation
    best: _Fitted | None = None
    for strength in STRENGTHS:
        weight, bias = _fit(read, targets[known], task.num_outputs, strength)
        # Standardisation is folded into the head, which then reads states as they are, like any
        # other.
        weight = weight / deviation
        linear = weight, bias - weight @ mean
        _load(head, linear)
        scores = task.score_outputs("validation", _outputs(head, held))
        # Scored through the head in fp32, as the test will be, not by the fitted model in fp64.
        score = scores.metrics[task.info.metric]
        if best is None or score > best.score:
            best = _Fitted(score, strength, linear, scores)
    assert best is not None  # noqa: S101 - there are strengths
    return best


def _outputs(head: nn.Module, states: torch.Tensor) -> NDArray[Any]:
    device = next(head.parameters()).device
    return head(states.to(device)).cpu().numpy()


def _load(head: nn.Module, linear: Linear) -> None:
    weight, bias = (torch.from_numpy(array.astype(np.float32)) for array in linear)
    head.load_state_dict({"weight": weight, "bias": bias})


def _fit(states: NDArray[Any], targets: NDArray[Any], width: int, strength: float) -> Linear:
    """Return the linear model of targets: classes, a truth value per label, or a number."""
    if targets.dtype.kind == "f":
        ridge = Ridge(alpha=1 / strength).fit(states, targets)
        return np.atleast_2d(ridge.coef_), np.atleast_1d(ridge.intercept_)
    if targets.ndim == 1:
        return _fit_classes(states, targets, width, strength)
    labels = [_fit_classes(states, target.astype(int), 2, strength) for target in targets.T]
    # The output of a label is its log odds.
    weights, biases = (np.stack(parts) for parts in zip(*labels, strict=True))
    return weights[:, 1] - weights[:, 0], biases[:, 1] - biases[:, 0]


def _fit_classes(
    states: NDArray[Any], targets: NDArray[Any], width: int, strength: float
) -> Linear:
    weight, bias = np.zeros((width, states.shape[1])), np.full(width, _NEVER)
    classes = np.unique(targets)
    if len(classes) == 1:
        # scikit-learn refuses a single class.
        bias[classes] = 0.0
        return weight, bias
    model = LogisticRegression(C=strength, max_iter=_MAX_ITERATIONS).fit(states, targets)
    if len(classes) == 2:  # scikit-learn has the log odds of the second class alone
        bias[classes[0]] = 0.0
        classes = classes[1:]
    weight[classes], bias[classes] = model.coef_, model.intercept_
    return weight, bias
