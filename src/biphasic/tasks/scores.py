"""Results of an evaluation: metrics over a split, and a score for every example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Column = (
    NDArray[np.float64]
    | NDArray[np.int64]
    | NDArray[np.bool_]
    | Sequence[str]
    | Sequence[Sequence[str]]
)


@dataclass(frozen=True, slots=True)
class SplitScores:
    """Scores of a model on one split.

    Attributes:
        metrics: Metrics over the whole split, by name.
        ids: The examples, in split order.
        scores: One score per example, defined by the kind; higher is better.
        columns: Further values of each example, by name, sufficient to recompute a metric over any
            subset of examples.
        by_type: Token classification: precision, recall, F1 and support of each entity type.
    """

    metrics: dict[str, float]
    ids: tuple[str, ...]
    scores: NDArray[np.float64]
    columns: Mapping[str, Column] = field(default_factory=dict)
    by_type: dict[str, dict[str, float]] = field(default_factory=dict)
