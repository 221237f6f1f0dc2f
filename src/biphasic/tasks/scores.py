"""What an evaluation yields: metrics over a split, and a score for every example of it."""

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
    """What a model scored on one split.

    Attributes:
        metrics: Metrics over the whole split, by name.
        ids: The examples, in the order of the split.
        scores: One score per example, the kind's own; the better the higher.
        columns: What else is known of each example, by name: from it a metric over any of the
            examples can be computed again.
        by_type: Token classification: precision, recall, F1 and support of each entity type.
    """

    metrics: dict[str, float]
    ids: tuple[str, ...]
    scores: NDArray[np.float64]
    columns: Mapping[str, Column] = field(default_factory=dict)
    by_type: dict[str, dict[str, float]] = field(default_factory=dict)
